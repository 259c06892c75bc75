"""The tuner: proposes, evaluates and keeps kernels of a workload, over any search space."""
