"""A2A: remote agents."""
