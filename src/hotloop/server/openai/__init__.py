"""OpenAI's chat and plain completions."""
