"""The benches of this repository: their options, fixtures and items."""
