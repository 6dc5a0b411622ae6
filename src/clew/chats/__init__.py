"""Group chats: several agents and people in one conversation, which is a thread."""
