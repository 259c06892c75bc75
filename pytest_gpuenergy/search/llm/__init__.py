"""Moves that a language model proposes."""
