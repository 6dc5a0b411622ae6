"""The commands: each module declares a few that belong together, and imports what is slow only when it is used."""
