"""Runs a program under PyTorch's profiler, and exports it if asked to."""
