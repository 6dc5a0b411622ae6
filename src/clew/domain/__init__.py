"""The domain: messages, events, and the state and decisions that follow from them. Pure, without I/O."""
