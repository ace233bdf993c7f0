"""Finding, fetching and reading a model: its numbers, its weights, its tokenizer, its chat template."""
