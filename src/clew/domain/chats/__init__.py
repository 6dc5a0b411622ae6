"""Group chats: their events, their state, and how their history is adapted to a participant."""
