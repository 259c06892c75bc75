"""A kernel that is to be improved: its specification, data, sizes, layout, and reference."""
