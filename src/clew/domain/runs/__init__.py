"""Runs: what an agent does on a thread, and what that comes to."""
