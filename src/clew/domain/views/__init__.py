"""Views of the log: the tree of forks, search, replay, the audit trail and diagnostics."""
