"""`hotloop run` and `hotloop predict`: an agent at work, and what its foresight has learned."""
