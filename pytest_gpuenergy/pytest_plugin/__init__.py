"""Everything that depends on pytest: options, fixtures, gate, xdist, order, outputs, bridge."""
