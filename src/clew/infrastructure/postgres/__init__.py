"""Stores in PostgreSQL databases."""
