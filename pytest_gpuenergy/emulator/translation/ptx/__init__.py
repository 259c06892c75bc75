"""Inline PTX: read from GNU asm statements, and written as C++ for the host."""
