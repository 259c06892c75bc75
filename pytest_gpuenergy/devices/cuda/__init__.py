"""A real NVIDIA GPU."""
