"""Functions and agents as tools: a call of the model, from its arguments to its result."""
