"""The tuner: proposes, evaluates and keeps kernels of a workload, from any search space."""
