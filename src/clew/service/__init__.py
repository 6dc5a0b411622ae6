"""What the service does, the same for threads and for asyncio."""
