"""What is said, what happened and what it means: pure, no I/O."""
