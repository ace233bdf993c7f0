"""Measuring: agents replayed over HTTP against any OpenAI-compatible server, and the engine's cost without a model."""
