"""Differences: two conversations side by side, down to the words."""
