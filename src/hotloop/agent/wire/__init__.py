"""Models behind a wire: OpenAI's and Anthropic's ways of asking, over HTTP, by hand."""
