"""A run over several processes and hosts: pytest-xdist's workers and fleets."""
