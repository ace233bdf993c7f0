"""Recorded runs of agents in the shapes that other commands read, a line of JSON for each session.

transcript    what was said: `hotloop lint`, `hotloop bench replay --data`, and benchmarks that take transcripts
traffic       how long prompts and answers were, and what they share: `hotloop simulate`; nothing of what was said
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.span import Span

BLOCK_TOKENS = 64

Json = dict[str, Any]


def render_transcripts(spans: Sequence[Span]) -> bytes:
    """Raises ConfigError where the run was recorded without what was said."""
    answers = {span.session: span.attributes.get(names.CONTENT_ANSWER) for span in spans if span.name == names.RUN}
    rows = []
    for session, chats in _sessions(spans):
        bodies = [body for chat in chats if (body := _body(chat))]
        if bodies:
            answer = answers.get(session)
            said = [*bodies[-1]["messages"], *([{"role": "assistant", "content": answer}] if answer else [])]
            messages = [_plain(message) for message in said]
            system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
            rows.append({"system": system, "tools": bodies[-1].get("tools", []), "messages": messages})
    if not rows:
        raise ConfigError("the run was recorded without content; set HOTLOOP_TRACE_CONTENT=1 to record it")
    return _lines(rows)


def render_traffic(spans: Sequence[Span]) -> bytes:
    """Raises ConfigError where no model was asked."""
    rows = [
        {"id": session, "block_size": BLOCK_TOKENS, "requests": [*_requests(chats)]}
        for session, chats in _sessions(spans)
    ]
    if not rows:
        raise ConfigError("no model of the run reported how many tokens its prompts had")
    return _lines(rows)


def _sessions(spans: Iterable[Span]) -> Iterator[tuple[str, list[Span]]]:
    """The questions of each agent, in their order, without what was only prefilled ahead."""
    asked: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        is_whole = span.attributes.get(names.NUM_PROMPT) and not span.attributes.get(names.IS_PREFILL_ONLY)
        if span.name == names.CHAT and is_whole:
            asked.setdefault(span.session, []).append(span)
    yield from asked.items()


def _requests(chats: Sequence[Span]) -> Iterator[Json]:
    """A prompt begins as the one before it with its answer did; one that is shorter, as much as was cached of it."""
    ids: list[int] = []
    num_ids = num_known = 0
    for before, chat in pairwise([None, *chats]):
        assert chat
        num_prompt, num_cached, num_output = (
            int(chat.attributes.get(name) or 0) for name in (names.NUM_PROMPT, names.NUM_CACHED, names.NUM_OUTPUT)
        )
        num_shared = num_known if num_prompt >= num_known else min(num_cached, num_prompt)
        num_known = num_prompt + num_output
        del ids[num_shared // BLOCK_TOKENS :]
        num_new = -(-num_known // BLOCK_TOKENS) - len(ids)
        ids += range(num_ids, num_ids + num_new)
        num_ids += num_new
        yield {
            "in": num_prompt,
            "out": num_output,
            "hash_ids_rle": _runs(ids[: -(-num_prompt // BLOCK_TOKENS)]),
            "think_time": max(chat.start_ns - before.end_ns, 0) / 1e9 if before else 0.0,
            "stop": "end_turn" if chat is chats[-1] else "tool_use",
        }


def _runs(ids: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for each in ids:
        if runs and sum(runs[-1]) == each:
            runs[-1][1] += 1
        else:
            runs.append([each, 1])
    return runs


def _body(chat: Span) -> Json | None:
    """As the agent has asked, in the words of chat completions; redaction may have cut into it."""
    try:
        body = json.loads(str(chat.attributes.get(names.CONTENT_REQUEST, "")))
    except ValueError:
        return None
    return body if isinstance(body, dict) and isinstance(body.get("messages"), list) else None


def _plain(message: Json) -> Json:
    """With its texts as one: transcripts have no pictures."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    kept = {name: message[name] for name in ("tool_calls", "tool_call_id") if message.get(name)}
    return {"role": message.get("role", "user"), "content": content, **kept}


def _lines(rows: Iterable[Json]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for row in rows)
