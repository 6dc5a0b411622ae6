"""History stores: copies of a history that are kept elsewhere, fed from the log."""
