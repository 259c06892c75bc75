"""From a kernel and a workload to a measurement: verification, harness, anchors."""
