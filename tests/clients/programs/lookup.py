"""The one tool of the programs, as OpenAI's chat API is told of it."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks a word up.",
            "parameters": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
        },
    }
]
