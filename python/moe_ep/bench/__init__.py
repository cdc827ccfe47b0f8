"""Measurements of dispatch and combine; ``moe-ep bench`` runs them, docs/benchmark.md defines them."""
