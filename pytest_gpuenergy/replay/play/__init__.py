"""Makes the calls of a profile again, by a `ReplayPlan`, and measures each."""
