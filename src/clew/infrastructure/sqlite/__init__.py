"""Stores in SQLite files: the log, the tables of projections and vectors beside it."""
