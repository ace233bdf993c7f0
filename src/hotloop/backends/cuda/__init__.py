"""The CUDA backend: a transformer as cuBLAS products and Triton kernels over a paged KV cache."""
