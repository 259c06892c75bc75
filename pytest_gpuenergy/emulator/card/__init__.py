"""What NVML answers: the state of an emulated card and its physics."""
