"""`hotloop bench`: what users run against their own servers. What measures hotloop itself is in `benchmarks/`."""
