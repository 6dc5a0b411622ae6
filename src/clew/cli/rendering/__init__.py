"""What commands write: for people as text and tables, for programs as JSON."""
