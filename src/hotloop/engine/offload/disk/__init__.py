"""KV that outlives the memory it was computed in: prefixes as files."""
