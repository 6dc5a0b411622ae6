"""Formats of conversations, events and threads for import and export."""
