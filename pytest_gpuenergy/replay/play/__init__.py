"""Makes the calls of a profiled program again, and measures each."""
