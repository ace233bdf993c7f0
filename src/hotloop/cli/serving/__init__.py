"""`hotloop serve`, `route`, `ray` and `simulate`: what answers requests, and where they would go."""
