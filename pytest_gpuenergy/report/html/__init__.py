"""A report as one self-contained HTML page that works without a network."""
