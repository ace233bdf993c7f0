"""An agent behind HTTP: OpenAI's chat completions and responses, and MCP."""
