# Generated from src/clew/aio/__init__.py by `make sync`. Do not edit it: edit the source.
"""The threads and memory scopes of Conversations: a call is done when it returns."""
