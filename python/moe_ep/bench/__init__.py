"""Measurements of dispatch and combine, for ``moe-ep bench``; docs/benchmarks.md defines them."""
