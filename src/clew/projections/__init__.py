"""Read models, declared as data and pure functions; each can be rebuilt at will."""
