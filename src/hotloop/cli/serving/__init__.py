"""`hotloop serve`, `route`, `fleet` and `simulate`: what answers requests, and where they would go."""
