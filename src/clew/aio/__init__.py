"""The threads, memory scopes and document stores of an Engine. clew.sync, the same without asyncio, is generated."""
