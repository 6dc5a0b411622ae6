"""Implementations of the same conversation, each in a separate process: ``python -m benchmarks.contenders.NAME``."""
