"""OpenAI's and Anthropic's APIs over an engine: requests are parsed at once, answers rendered at the last moment."""
