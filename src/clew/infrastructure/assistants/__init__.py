"""The client of remote agents with the wire of OpenAI's Assistants."""
