"""Context in runs: the hooks of context providers, what they give and keep, and what histories are reduced to."""
