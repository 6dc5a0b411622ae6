"""The model client for Anthropic."""
