"""Agents: their run loop, tools, approvals and context."""
