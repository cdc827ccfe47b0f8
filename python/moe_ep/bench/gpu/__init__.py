"""Measurements on GPUs: CUDA graphs, eager steps, limits of the machine, NCCL, FlashInfer."""
