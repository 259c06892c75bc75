"""Takes one kernel, and what it needs, out of a CUDA file that also contains a program."""
