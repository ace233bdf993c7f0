"""OpenAI's responses on replicas that speak chat completions only. Nothing is kept: each request is a conversation."""
