"""Anthropic's clients on replicas that speak OpenAI's chat completions only."""
