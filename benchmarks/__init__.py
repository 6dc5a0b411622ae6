"""What Clew costs, measured beside what it is compared with: ``python -m benchmarks``."""
