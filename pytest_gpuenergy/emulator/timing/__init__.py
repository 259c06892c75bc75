"""The emulated GPU's model of a kernel's time and power."""
