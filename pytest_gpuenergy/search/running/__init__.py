"""Runs a search: its processes, its folder, and what it shows."""
