"""Memory scopes and document stores over the log: written, read at any version, and searched."""
