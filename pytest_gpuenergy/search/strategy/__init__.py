"""Chooses the next state to evaluate, for any graph of states and actions."""
