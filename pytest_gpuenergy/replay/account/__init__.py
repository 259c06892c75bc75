"""Accounts for the energy of a step as the sum of its calls."""
