"""The agent runtime: a pipeline from a model's words to tools and back, over HTTP or with a model handed in."""
