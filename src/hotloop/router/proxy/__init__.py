"""One request, from a place at a replica to the last byte of its answer."""
