"""Adds up the calls of a step to an `Account`, and reports all in a `ReplayReport`."""
