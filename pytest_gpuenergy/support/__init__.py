"""What every package may use: errors, files, processes, signals. Knows nothing of GPUs."""
