"""The face for threads of control: conversations and memory scopes, each call done when it returns."""
