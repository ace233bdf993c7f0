"""What model tiers save: a mixed set of tasks, asked of a large model, a small one, and both by tiers."""
