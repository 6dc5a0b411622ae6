"""Memory that threads share: facts and documents in scopes, with their history and their provenance."""
