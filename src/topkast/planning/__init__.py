"""What training a model would take, before it exists: parameters, FLOPs, bytes, traffic."""
