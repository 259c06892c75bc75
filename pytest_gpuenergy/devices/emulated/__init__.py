"""The emulated GPU: CUDA text run on the host CPU, in virtual time."""
