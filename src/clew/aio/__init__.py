"""The face for asyncio: threads, memory scopes and stores of documents; the synchronous one has the same names."""
