"""`hotloop run` and `hotloop predict`: an agent at work, and what its speculation has learned."""
