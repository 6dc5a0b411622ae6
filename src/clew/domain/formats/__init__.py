"""Formats: conversations and events as they come from elsewhere and go there."""
