"""Validates variants: evaluation on hidden inputs, refusals, and comparison."""
