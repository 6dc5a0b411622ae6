"""The operations of the service, the same for threads and for asyncio."""
