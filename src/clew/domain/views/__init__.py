"""Views: what there is to find, to list and to step through."""
