"""Attention over the paged KV cache, a module per kernel."""
