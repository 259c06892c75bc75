"""What to expect of a move before it is tried."""
