"""Model clients and embeddings over the `openai` package."""
