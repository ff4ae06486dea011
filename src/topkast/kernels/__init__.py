"""Engines: the three products of a sparse layer. Knows tensors and Plans, nothing of modules or methods."""
