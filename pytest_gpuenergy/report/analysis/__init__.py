"""What measurements say together: the best, what has changed, how boards differ."""
