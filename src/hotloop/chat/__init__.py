"""Between messages and tokens: what a conversation looks like to the model."""
