"""Whose joules are they: from the profile of a model to the energy of its kernels."""
