"""TVM: its search space for the tuner, its records, and the store that lowers them to kernels."""
