"""MCP servers: their tools, prompts and resources as tools of agents."""
