"""Translated kernels, compiled for the host and run in processes of their own."""
