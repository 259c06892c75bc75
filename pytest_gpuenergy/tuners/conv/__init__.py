"""Convolutions in groups: our templates, and the search space of their parameters."""
