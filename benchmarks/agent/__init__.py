"""What the agent runtime gains: each pattern against the same loop without it."""
