"""A choice of a chat completion: the assistant's message with its tool calls, at once or piece by piece.

Text and calls are told apart by the tool format's parser, one a choice; nothing here knows what a call looks like.
"""

from collections.abc import Callable, Iterable, Sequence

from hotloop.chat.stream import CallParser
from hotloop.core.request import FinishReason, TokenEvent, TokenLogprob
from hotloop.core.stream import CallDelta, CallOpened, StreamEvent, TextDelta
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.openai.render import Json, clamp


class PlainText:
    """The parser of an answer that cannot hold calls."""

    num_calls = 0

    def push(self, text: str) -> list[StreamEvent]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[StreamEvent]:
        return []


class Silence:
    """The parser of an answer that nobody asked for."""

    num_calls = 0

    def push(self, text: str) -> list[StreamEvent]:
        return []

    def finish(self) -> list[StreamEvent]:
        return []


class ChatWording:
    """A choice is a message from the assistant.

    `parser` makes what finds the calls in a text. `is_named`: the one tool to call was named, which OpenAI does not
    count as a reason to finish.
    """

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        has_logprobs: bool,
        parser: Callable[[], CallParser] = PlainText,
        is_named: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._new_parser = parser
        self._is_named = is_named
        self._parsers: dict[int, CallParser] = {}

    def whole(self, index: int, event: TokenEvent) -> Json:
        return {
            "index": index,
            "message": _render_message(self._parse(index, event)),
            "logprobs": self._render_logprobs(event.logprobs),
            "finish_reason": self._finish_reason(index, event),
            "stop_reason": event.stop_match,
        }

    def opening(self, index: int) -> Json:
        content = "" if self._new_parser is PlainText else None
        return _chunk(index, {"role": "assistant", "content": content, "refusal": None})

    def deltas(self, index: int, event: TokenEvent) -> Iterable[Json]:
        """The log probabilities of all that is new go with the first piece, be it empty."""
        pieces = [*_render_deltas(self._parse(index, event))]
        if event.logprobs and not pieces:
            pieces.append({})
        logprobs = self._render_logprobs(event.logprobs)
        for piece in pieces:
            yield _chunk(index, piece, logprobs)
            logprobs = None

    def closing(self, index: int, event: TokenEvent) -> Json:
        reason = self._finish_reason(index, event)
        return {**_chunk(index, {}), "finish_reason": reason, "stop_reason": event.stop_match}

    def _parse(self, index: int, event: TokenEvent) -> list[StreamEvent]:
        parser = self._parsers.get(index) or self._parsers.setdefault(index, self._new_parser())
        events = parser.push(event.text)
        return events + parser.finish() if event.finish_reason else events

    def _finish_reason(self, index: int, event: TokenEvent) -> str | None:
        """Calls are a reason of their own only where the model ended its turn by itself."""
        has_ended = event.finish_reason is FinishReason.STOP and event.stop_match is None
        has_called = has_ended and self._parsers[index].num_calls > 0
        return "tool_calls" if has_called and not self._is_named else event.finish_reason

    def _render_logprobs(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        if not self._has_logprobs:
            return None
        content = [
            {
                **self._render_token(logprob.token_id, logprob.logprob),
                "top_logprobs": [self._render_token(*top) for top in logprob.top],
            }
            for logprob in logprobs
        ]
        return {"content": content, "refusal": None}

    def _render_token(self, token_id: int, logprob: float) -> Json:
        token_bytes = self._tokenizer.token_bytes(token_id)
        return {
            "token": self._tokenizer.token_text(token_id),
            "logprob": clamp(logprob),
            "bytes": list(token_bytes) or None,
        }


def _render_message(events: Sequence[StreamEvent]) -> Json:
    content = ""
    calls: dict[int, Json] = {}
    for event in events:
        match event:
            case TextDelta():
                content += event.text
            case CallOpened():
                calls[event.index] = _render_call(event)
            case CallDelta():
                calls[event.index]["function"]["arguments"] += event.arguments
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    return {**message, "content": content or None, "tool_calls": [*calls.values()]} if calls else message


def _render_deltas(events: Iterable[StreamEvent]) -> Iterable[Json]:
    """OpenAI's deltas have no word for the end of a call: the next one begins, or the answer ends."""
    for event in events:
        match event:
            case TextDelta():
                yield {"content": event.text}
            case CallOpened():
                yield {"tool_calls": [{"index": event.index, **_render_call(event)}]}
            case CallDelta():
                yield {"tool_calls": [{"index": event.index, "function": {"arguments": event.arguments}}]}


def _render_call(event: CallOpened) -> Json:
    return {"id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}}


def _chunk(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
