"""The event store in plain Python objects, for tests and notebooks."""
