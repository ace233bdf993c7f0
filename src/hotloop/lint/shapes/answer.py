"""What was answered, by any API, whole or as it was streamed: its parts, its id and what it says of its tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from hotloop.lint.part import Json, Part, listing, mapping
from hotloop.lint.shapes.chat import message_parts
from hotloop.lint.shapes.messages import turn_parts
from hotloop.lint.shapes.responses import item_parts

Api = Literal["chat", "responses", "messages"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the wire told them; `num_prompt` has the cached ones in it."""

    num_prompt: int
    num_cached: int | None = None
    num_output: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    parts: tuple[Part, ...] = ()
    usage: Usage | None = None
    id: str = ""


def parse_answer(body: Any, api: Api) -> Answer:
    """The answer that a whole body is; an assistant's message alone will do."""
    given = mapping(body)
    parts = (replace(part, path=f"answer: {part.path}") for part in _parts(given, api))
    return Answer(tuple(parts), parse_usage(mapping(given.get("usage"))), str(given.get("id", "")))


def parse_stream(data: bytes, api: Api) -> Answer:
    """The answer that was streamed as these server-sent events."""
    return join_events([*_events(data)], api)


def join_events(events: Sequence[Json], api: Api) -> Answer:
    join = {"chat": _join_chat, "responses": _join_response, "messages": _join_message}[api]
    return parse_answer(join(events), api)


def parse_usage(usage: Json) -> Usage | None:
    """OpenAI's words for it, those of its responses, or Anthropic's, who leaves cached tokens out of the prompt's."""
    if _int(usage.get("prompt_tokens")) is not None:
        details = mapping(usage.get("prompt_tokens_details"))
        return Usage(
            usage["prompt_tokens"], _int(details.get("cached_tokens")), _int(usage.get("completion_tokens")) or 0
        )
    num_input, num_output = _int(usage.get("input_tokens")), _int(usage.get("output_tokens")) or 0
    if num_input is None:
        return None
    if "input_tokens_details" in usage:
        return Usage(num_input, _int(mapping(usage["input_tokens_details"]).get("cached_tokens")), num_output)
    num_cached, num_written = (_int(usage.get(f"cache_{name}_input_tokens")) for name in ("read", "creation"))
    return Usage(num_input + (num_cached or 0) + (num_written or 0), num_cached, num_output)


def _parts(body: Json, api: Api) -> Iterator[Part]:
    """An answer has no place in a request until it is sent back: its paths are its own."""
    if api == "messages":
        yield from turn_parts({"role": "assistant"} | body, 0)
    elif api == "responses":
        for i, item in enumerate(listing(body.get("output"))):
            yield from item_parts(mapping(item), i, f"output[{i}]")
    else:
        message = mapping(mapping(next(iter(listing(body.get("choices"))), body)).get("message")) or body
        yield from message_parts({"role": "assistant"} | message, 0)


def _events(data: bytes) -> Iterator[Json]:
    for line in data.splitlines():
        if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
            try:
                yield mapping(msgspec.json.decode(line[5:]))
            except msgspec.MsgspecError:
                continue  # a stream that broke off


def _join_chat(events: Sequence[Json]) -> Json:
    message: Json = {"role": "assistant", "content": "", "reasoning_content": ""}
    calls: list[Json] = []
    usage: Any = None
    for event in events:
        usage = event.get("usage") or usage
        delta = mapping(mapping(next(iter(listing(event.get("choices"))), {})).get("delta"))
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or delta.get("reasoning") or ""
        for piece in map(mapping, listing(delta.get("tool_calls"))):
            _grow_call(calls, piece)
    message |= {"tool_calls": calls} if calls else {}
    return {"id": _first_id(events), "choices": [{"message": message}], "usage": usage}


def _grow_call(calls: list[Json], piece: Json) -> None:
    index = piece.get("index", len(calls))
    if not isinstance(index, int) or index >= len(calls):
        calls.append({"id": piece.get("id"), "function": {"name": "", "arguments": ""}})
        index = len(calls) - 1
    for name in ("name", "arguments"):
        calls[index]["function"][name] += mapping(piece.get("function")).get(name) or ""


def _join_response(events: Sequence[Json]) -> Json:
    return next((mapping(event["response"]) for event in reversed(events) if "response" in event), {})


def _join_message(events: Sequence[Json]) -> Json:
    begun = next((mapping(event.get("message")) for event in events if event.get("type") == "message_start"), {})
    blocks: dict[int, Json] = {}
    usage = mapping(begun.get("usage"))
    for event in events:
        index, delta = event.get("index", 0), mapping(event.get("delta"))
        if event.get("type") == "content_block_start":
            blocks[index] = {**mapping(event.get("content_block"))}
        elif event.get("type") == "content_block_delta" and index in blocks:
            _grow_block(blocks[index], delta)
        elif event.get("type") == "message_delta":
            usage = usage | mapping(event.get("usage"))
    content = [_close_block(block) for _, block in sorted(blocks.items())]
    return {"id": begun.get("id", ""), "role": "assistant", "content": content, "usage": usage}


def _grow_block(block: Json, delta: Json) -> None:
    for name in ("text", "thinking"):
        if name in delta:
            block[name] = block.get(name, "") + delta[name]
    if "partial_json" in delta:
        block["written"] = block.get("written", "") + delta["partial_json"]


def _close_block(block: Json) -> Json:
    written = block.pop("written", None)
    if written:
        try:
            block["input"] = msgspec.json.decode(written)
        except msgspec.MsgspecError:
            block["input"] = {}
    return block


def _first_id(events: Iterable[Json]) -> str:
    return next((str(event["id"]) for event in events if event.get("id")), "")


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
