"""A conversation made shorter: what its own model is asked for, and what then stands in its place.

    user, reasoning, function_call, function_call_output, message, user  ->  user, user, compaction

What the user said is kept as it is, the last of it if it is long; all else is in a summary that the model writes. The
request for it goes behind the conversation, so that what is cached of that is read again.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hotloop.wire.field import Json
from hotloop.wire.part import seal_text
from hotloop.wire.usage import ApiUsage

MAX_SUMMARY_TOKENS = 8192
MAX_THOUGHT_TOKENS = 1024
MAX_KEPT_BYTES = 80_000
"""Of what the user said, where nobody knows how much the model can read."""

REQUEST = """\
The conversation up to here has become long, and a summary of it is to take its place. Write that summary.
Whoever goes on from it will see the user's own messages, and nothing else of what was said and done. Tell:
- what is asked for, and the rules and wishes that hold for it;
- what was done and decided, and why; what was tried and failed;
- names, paths, commands, figures and error messages that are still needed, exactly as they are;
- what is left to do, and the next step.
Call no tool, and write nothing but the summary."""

# What makes the prompt begin as the conversation's prompts did, and says whose it is.
_FIELDS = (
    *("model", "instructions", "tools", "parallel_tool_calls", "reasoning", "chat_template_kwargs", "user"),
    *("session_id", "cache_salt", "priority", "service_tier", "previous_response_id"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
)
_RULES = ("system", "developer")


def ask_summary(body: Json, items: Iterable[Json]) -> Json:
    """The body of a request for a response that is the summary of these items."""
    kept = {name: body[name] for name in _FIELDS if body.get(name) is not None}
    choice = {"tool_choice": "none"} if kept.get("tools") else {}
    asked = {"role": "user", "content": REQUEST}
    return {**kept, **choice, "input": [*items, asked], "max_output_tokens": MAX_SUMMARY_TOKENS, "store": False}


def render_compaction(
    stem: str, items: Sequence[Json], summary: str, usage: ApiUsage, max_kept_bytes: int = MAX_KEPT_BYTES
) -> Json:
    """The answer, whose output is the input of whatever comes next."""
    kept = [_render_message(item, f"msg_{stem}_{i}") for i, item in enumerate(_keep(items, max_kept_bytes))]
    compaction = {"id": f"cmp_{stem}", "type": "compaction", "encrypted_content": seal_text(summary)}
    return {
        "id": f"resp_{stem}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*kept, compaction],
        "usage": usage.render_response(),
    }


def _keep(items: Sequence[Json], max_bytes: int) -> Iterator[Json]:
    """Rules, and the last that the user said."""
    kept: list[Json] = []
    for item in reversed(items):
        role = item.get("role") if item.get("type") in (None, "message") else None
        max_bytes -= len(msgspec.json.encode(item["content"])) if role == "user" else 0
        if role in _RULES or (role == "user" and max_bytes >= 0):
            kept.append(item)
    return reversed(kept)


def _render_message(item: Json, item_id: str) -> Json:
    content = item["content"]
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    return {"id": item_id, "type": "message", "status": "completed", "role": item["role"], "content": content}
