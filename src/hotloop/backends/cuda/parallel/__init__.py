"""Tensor parallelism: the ranks of one model on several GPUs."""
