"""`hotloop models` and `pull`."""
