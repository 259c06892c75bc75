"""What makes a variant believed: evaluation on hidden inputs, refusals, and comparison."""
