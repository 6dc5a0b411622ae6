# Generated from src/clew/aio/__init__.py by `make generate`. Do not edit it: edit the source.
"""The threads and memory scopes of Conversations: a call is done when it returns."""
