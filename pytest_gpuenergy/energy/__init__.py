"""Joules and watts: power caps, and energy from NVML's readings."""
