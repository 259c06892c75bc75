"""The emulated card behind NVML: its state and its physics."""
