"""Runs a program under PyTorch's profiler; a `ProfileRun` is what it has written."""
