"""The model client for Gemini."""
