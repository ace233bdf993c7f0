"""What each client of docs/clients.md sends, in its shape and in our words: the API, the fields, how tools are written
and how an answer comes back. Seen in requests of the real ones; those that were not run (Cline, n8n) are
written from their documentation.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

RULES = "You help with a repository. " * 20
QUESTION = "What is the word?"
WORD = "heron-4711"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#", **SCHEMA, "additionalProperties": False}


@dataclass(frozen=True)
class Shape:
    name: str
    path: str
    body: Json
    go_on: Callable[[Json, Json], Json]
    """The next request, from this one and the whole answer to it."""
    has_tools: bool = True


def tool(schema: Json, **fields: Any) -> Json:
    return {"type": "function", "function": {"name": "run", "description": "Runs it.", "parameters": schema, **fields}}


def chat(*, content: str | None = None, is_compact: bool = False) -> Callable[[Json, Json], Json]:
    """`content` is what stands for no text; compact: the arguments are parsed, and written anew without spaces."""

    def go_on(body: Json, answer: Json) -> Json:
        message = answer["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        for call in calls if is_compact else ():
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
        said = {
            "role": "assistant",
            "content": message["content"] or content,
            **({"tool_calls": calls} if calls else {}),
        }
        results = [{"role": "tool", "tool_call_id": call["id"], "content": WORD} for call in calls]
        return {**body, "messages": [*body["messages"], said, *(results or [{"role": "user", "content": "Go on."}])]}

    return go_on


def responses(*, has_ids: bool) -> Callable[[Json, Json], Json]:
    def go_on(body: Json, answer: Json) -> Json:
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": WORD} for call in calls]
        if has_ids:
            results = [{**result, "id": f"fco_{i}"} for i, result in enumerate(results)]
        return {**body, "input": [*body["input"], *answer["output"], *results]}

    return go_on


def claude_code(body: Json, answer: Json) -> Json:
    """The header at the top has another value each time, and the mark of the cache moves to the newest result."""
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": WORD, "is_error": False} for call in calls]
    results[-1]["cache_control"] = {"type": "ephemeral"}
    turns = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
    return {**body, "system": [billing("f00d"), *body["system"][1:]], "messages": [*body["messages"], *turns]}


def billing(value: str) -> Json:
    return {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.0.1; cc_entrypoint=cli; cch={value};"}


def cline(body: Json, answer: Json) -> Json:
    """Tools are words in its prompt, and so are their results."""
    said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    parts = [{"type": "text", "text": f"[run] Result: {WORD}"}, {"type": "text", "text": "<details>more</details>"}]
    return {**body, "messages": [*body["messages"], said, {"role": "user", "content": parts}]}


ASKED = [{"role": "system", "content": RULES}, {"role": "user", "content": QUESTION}]
CHAT = "/v1/chat/completions"
SHAPES = [
    Shape(
        "Claude Code",
        "/v1/messages?beta=true",
        {
            "max_tokens": 32000, "stream": True, "metadata": {"user_id": '{"session_id": "s1"}'},
            "system": [billing("beef"), {"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
            "tools": [{"name": "run", "description": "Runs it.", "input_schema": DRAFT}],
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
        claude_code,
    ),
    Shape(
        "Codex",
        "/v1/responses",
        {
            "stream": True, "store": False, "include": ["reasoning.encrypted_content"],
            "reasoning": {"summary": "auto"}, "tool_choice": "auto", "parallel_tool_calls": True,
            "prompt_cache_key": "k1", "client_metadata": {"session_id": "s1"},
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": RULES}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
            ],
            "tools": [
                {"type": "function", "name": "run", "description": "Runs it.", "strict": False, "parameters": SCHEMA},
                {"type": "web_search", "external_web_access": True},
            ],
        },
        responses(has_ids=True),
    ),
    Shape(
        "OpenCode",
        CHAT,
        {
            "max_tokens": 32000, "stream": True, "stream_options": {"include_usage": True}, "tool_choice": "auto",
            "messages": ASKED, "tools": [tool(DRAFT)],
        },
        chat(content="", is_compact=True),
    ),
    Shape("aider", CHAT, {"stream": True, "temperature": 0, "messages": ASKED}, chat(), has_tools=False),
    Shape(
        "Cline",
        CHAT,
        {
            "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
            "messages": [ASKED[0], {"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        },
        cline,
        has_tools=False,
    ),
    Shape(
        "Continue",
        CHAT,
        {"stream": True, "max_tokens": 4096, "messages": ASKED, "tools": [tool(SCHEMA)], "parallel_tool_calls": False},
        chat(content=" "),
    ),
    Shape("LangGraph", CHAT, {"stream": False, "messages": ASKED, "tools": [tool(SCHEMA)]}, chat()),
    Shape(
        "Agents SDK",
        "/v1/responses",
        {
            "include": [], "instructions": RULES, "input": [{"role": "user", "content": QUESTION}],
            "tools": [
                {"type": "function", "name": "run", "strict": True, "parameters": DRAFT, "description": "Runs it."}
            ],
        },
        responses(has_ids=False),
    ),
    Shape(
        "pydantic-ai",
        CHAT,
        {"stream": False, "tool_choice": "auto", "messages": ASKED, "tools": [tool(DRAFT, strict=True)]},
        chat(),
    ),
    Shape(
        "Vercel ai",
        CHAT,
        {"stream": True, "tool_choice": "auto", "messages": ASKED, "tools": [tool(DRAFT)]},
        chat(is_compact=True),
    ),
    Shape(
        "n8n",
        CHAT,
        {
            "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7, "top_p": 1,
            "frequency_penalty": 0, "presence_penalty": 0, "max_tokens": 4096, "messages": ASKED,
            "tools": [tool(DRAFT)],
        },
        chat(content=""),
    ),
]  # fmt: skip
