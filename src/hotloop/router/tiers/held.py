"""The stream of a smaller tier, held until enough was heard to judge it: then it is told as it is written.

    pieces   [ held, and heard as an answer | .................... ]
                                            └ will it do? what was held is told, and then what comes

Calls are held to their end, since only a whole one can be judged.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from hotloop.router.tiers.config import CascadeConfig
from hotloop.router.tiers.features import has_shape
from hotloop.router.upstream.wire import parse_json
from hotloop.wire.field import Json
from hotloop.wire.sse import EventReader, ServerEvent, split_events, write_data

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


def may_stream(request: Mapping[str, Any], config: CascadeConfig) -> bool:
    """Whether an answer may be told before its end: free text that was asked for as a stream."""
    must_call = request.get("tool_choice") not in (None, "auto", "none")
    return bool(request.get("stream") and config.hold_tokens) and not (must_call or has_shape(request))


class HeldStream:
    """`body` is a chat's, in whole events. `hides_logprobs`: nobody but the judge asked for them."""

    def __init__(self, body: AsyncGenerator[bytes, None], *, hides_logprobs: bool) -> None:
        self.num_tokens = 0
        """Of text."""
        self._body = body
        self._hides_logprobs = hides_logprobs
        self._held: list[bytes] = []
        self._answer: Json = {}
        self._message: Json = {"role": "assistant", "content": None}
        self._choice: Json = {"index": 0, "message": self._message, "finish_reason": None, "logprobs": None}
        self._calls: dict[int, Json] = {}
        self._has_failed = False

    async def hear(self, num_tokens: int) -> bool:
        """As much text as that, or all of it where it has calls; whether it is over."""
        async for piece in self._body:
            self._held.append(piece)
            for event in EventReader().push(piece):
                self._read(event)
            if self.num_tokens >= num_tokens and not self._calls:
                return False
        return True

    @property
    def answer(self) -> Json | None:
        """What was heard, as if it were all; None of a stream that has failed, or said nothing."""
        if self._has_failed or not self._answer:
            return None
        return {**self._answer, "object": "chat.completion", "choices": [self._choice]}

    async def tell(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._body) as body:
            for piece in self._held:
                yield self._shown(piece)
            self._held.clear()
            async for piece in body:
                yield self._shown(piece)

    def _shown(self, piece: bytes) -> bytes:
        return b"".join(map(_without_logprobs, split_events(piece))) if self._hides_logprobs else piece

    def _read(self, event: ServerEvent) -> None:
        chunk = parse_json(event.data, Json)
        if chunk is None:  # the end, or nothing that can be read
            return
        self._has_failed = self._has_failed or "error" in chunk
        self._answer |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        match chunk.get("choices"):
            case [{"delta": dict() as delta} as choice, *_]:
                self._add(delta)
                self._choice["finish_reason"] = choice.get("finish_reason") or self._choice["finish_reason"]
                self._count(delta, choice.get("logprobs"))

    def _add(self, delta: Json) -> None:
        for name in _TEXTS:
            if isinstance(text := delta.get(name), str):
                self._message[name] = (self._message.get(name) or "") + text
        calls = delta.get("tool_calls")
        for part in calls if isinstance(calls, list) else ():
            match part:
                case {"index": int() as index, "function": dict() as function}:
                    call = self._calls.setdefault(
                        index, {"id": part.get("id"), "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    for name in call["function"]:
                        call["function"][name] += str(function.get(name) or "")
        if self._calls:
            self._message["tool_calls"] = [*self._calls.values()]

    def _count(self, delta: Json, logprobs: Any) -> None:
        match logprobs:
            case {"content": [*told]} if told:
                seen = self._choice["logprobs"] = self._choice["logprobs"] or {"content": []}
                seen["content"] += told
                self.num_tokens += len(told)
            case _:
                self.num_tokens += bool(delta.get("content"))


def _without_logprobs(event: bytes) -> bytes:
    if b'"logprobs"' not in event:
        return event
    chunk = next((parse_json(read.data, Json) for read in EventReader().push(event)), None)
    choices = chunk.get("choices") if chunk else None
    if not chunk or not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
        return event
    return write_data({**chunk, "choices": [{**each, "logprobs": None} for each in choices]})
