"""Stores in SQLite files: the log, and files for projections and vectors next to it."""
