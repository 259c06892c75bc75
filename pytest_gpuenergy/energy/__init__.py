"""Energy and power from NVML's readings."""
