"""Our templates for convolutions in groups, and the search over their parameters."""
