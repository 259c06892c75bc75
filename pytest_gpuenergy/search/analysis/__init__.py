"""The text, the launch plan and the spec of a kernel, read together."""
