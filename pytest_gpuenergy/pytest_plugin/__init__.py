"""Everything that knows pytest: options, fixtures, gate, xdist, order, outputs, bridge."""
