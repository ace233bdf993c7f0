"""KV blocks, the prefix tree over them, what is evicted, and what is held."""
