"""Improves a kernel by moves on its source, each verified before it is timed."""
