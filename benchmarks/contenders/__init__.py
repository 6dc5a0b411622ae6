"""What holds the same conversation, each in a process of its own: ``python -m benchmarks.contenders.NAME``."""
