"""What size costs: memory and time beyond one process, one device and what fits."""
