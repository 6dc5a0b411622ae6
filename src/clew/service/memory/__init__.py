"""Memory scopes and stores of documents over the log: written, read as they are or were, and searched."""
