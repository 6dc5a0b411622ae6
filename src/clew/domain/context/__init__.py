"""What components give to a run and learn from it, and what a history is reduced to: values, events, pure functions."""
