"""HTTP: the OpenAI API over an engine. Parses the wire into core values at once and renders them at the last moment."""
