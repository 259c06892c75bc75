"""Predicts the gain of a move before it is tried."""
