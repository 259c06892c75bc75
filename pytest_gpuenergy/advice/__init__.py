"""Which setpoint and which kernels are best for several workloads that run one after another."""
