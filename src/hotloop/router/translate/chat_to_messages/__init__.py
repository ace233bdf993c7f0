"""OpenAI's chat clients on replicas that speak Anthropic's messages only."""
