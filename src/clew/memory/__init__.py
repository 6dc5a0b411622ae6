"""The context providers that ship with Clew."""
