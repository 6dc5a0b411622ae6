"""Agents, their run loop, tools, approvals and group chats."""
