"""The graph of a search as a page."""
