"""Our templates for matrix products, and the search over their parameters."""
