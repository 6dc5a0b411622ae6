"""MiniLM on this machine: one class, LocalEmbedder. Only the front door imports this package."""

from clew.infrastructure.minilm.embedder import LocalEmbedder

__all__ = ["LocalEmbedder"]
