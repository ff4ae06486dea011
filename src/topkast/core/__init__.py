"""The state, the sets, the reservoir, the refresh. Knows kernels; nothing of layers or methods."""
