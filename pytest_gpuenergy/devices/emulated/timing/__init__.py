"""The emulated GPU's model of how long a kernel takes and what it draws."""
