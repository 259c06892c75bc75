"""From the trace of a profile to its launches, unique kernels and unique calls."""
