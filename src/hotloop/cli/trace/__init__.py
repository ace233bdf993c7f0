"""`hotloop trace`: what was recorded of runs."""
