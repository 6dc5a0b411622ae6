"""What is remembered outside any one thread: facts and documents in scopes, with their past and their provenance."""
