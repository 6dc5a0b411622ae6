"""The outside world: event stores, files and clocks."""
