"""What every package may use: errors, files, processes, signals. Independent of GPUs."""
