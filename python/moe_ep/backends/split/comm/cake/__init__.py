"""Paths of the reference interface; see `moe_ep.backends.split.comm.cake.kernels`."""
