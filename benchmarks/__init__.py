"""The costs of Clew, measured next to baselines: ``python -m benchmarks``."""
