"""Measurements of dispatch and combine, for ``moe-ep bench``; docs/benchmark.md defines them."""
