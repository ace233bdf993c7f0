"""What the CUDA backend does on a card: `python -m benchmarks.gpu`, or one of its parts."""
