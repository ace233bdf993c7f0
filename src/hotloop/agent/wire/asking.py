"""What is asked of a model as a request of any API, and the events of its answer as an agent hears them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hotloop.agent.model import Answered, AnswerEnd, Ask, ModelEvent, ModelUsage
from hotloop.agent.wire.http import RemoteServer
from hotloop.core.errors import RemoteError
from hotloop.core.message import Message, Tool
from hotloop.core.stream import CallOpened
from hotloop.wire import request as wire
from hotloop.wire.event import Begun, Ended, Event, ThoughtClosed, ThoughtDelta
from hotloop.wire.part import Call, Result, Text, Turn
from hotloop.wire.reader import Reader
from hotloop.wire.sse import ServerEvent
from hotloop.wire.usage import Usage

_FAILED = "Error: "  # how a run words a call that failed


def make_request(ask: Ask, model: str, *, cache_key: str | None = None) -> wire.Request:
    mode: wire.ChoiceMode = "none" if ask.schema is not None else ask.choice
    strict = {"strict": True} if is_closed(ask.schema) else {}
    return wire.Request(
        api="chat",
        model=model,
        turns=tuple(_make_turn(message) for message in ask.messages),
        tools=tuple(_make_tool(tool) for tool in ask.tools),
        choice=wire.Choice(None if mode == "auto" else mode) if ask.tools else wire.Choice(),
        shape=None if ask.schema is None else wire.Shape(dict(ask.schema), strict),
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        cache=wire.Cache(key=cache_key),
    )


def is_closed(schema: Any) -> bool:
    """Whether OpenAI takes a schema as a strict one: every object lists all it may have, and must have it."""
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        properties = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(properties):
            return False
    return all(is_closed(value) for key, value in schema.items() if key not in ("default", "enum", "const"))


def _make_turn(message: Message) -> Turn:
    text = Text(message.content)
    match message.role:
        case "tool":
            is_error = message.content.startswith(_FAILED)
            return Turn("user", (Result(message.tool_call_id or "", (text,), is_error=is_error),))
        case "assistant":
            calls = [Call(call.id, call.name, call.arguments or "{}") for call in message.tool_calls]
            return Turn("assistant", (*message.thoughts, text, *calls))
        case role:
            return Turn(role, (text,), is_plain=True)


def _make_tool(tool: Tool) -> wire.Tool:
    """`strict` is said where it can be kept everywhere; a server that can do more does it unasked."""
    is_said = not tool.is_strict or is_closed(tool.parameters)
    return wire.Tool(tool.name, tool.description, dict(tool.parameters), tool.is_strict if is_said else None)


class Listener:
    """Told the events of a stream, gives what an agent hears of an answer."""

    def __init__(self, server: RemoteServer, reader: Reader) -> None:
        self.is_hotloop = False
        self._server = server
        self._reader = reader
        self._answer_id = ""
        self._has_calls = False
        self._ended: Ended | None = None

    def push(self, event: ServerEvent) -> Iterator[ModelEvent]:
        yield from self._hear(self._reader.push(event))

    def finish(self) -> Iterator[ModelEvent]:
        """The stream is over: what is left to say. Raises RemoteError if it ended too early."""
        yield from self._hear(self._reader.finish())
        ended = self._ended or Ended()
        if ended.reason == "refusal":
            raise self._server.fail("the model refused to answer, or a content filter stopped it")
        is_cut = ended.reason in ("length", "window")
        end: AnswerEnd = "length" if is_cut else "calls" if self._has_calls else "stop"
        yield Answered(end, model_usage(ended.usage), self._answer_id)

    def _hear(self, events: Iterable[Event]) -> Iterator[ModelEvent]:
        try:
            for event in events:
                yield from self._take(event)
        except RemoteError as error:
            raise self._server.fail(str(error)) from None

    def _take(self, event: Event) -> Iterator[ModelEvent]:
        match event:
            case Begun():
                self._answer_id = event.id
                self.is_hotloop |= event.usage.hotloop is not None
            case Ended():
                self._ended = event
                self.is_hotloop |= event.usage.hotloop is not None
            case ThoughtClosed():
                yield event.thought
            case ThoughtDelta():
                return
            case _:
                self._has_calls |= isinstance(event, CallOpened)
                yield event


def model_usage(usage: Usage) -> ModelUsage:
    return ModelUsage(num_prompt=usage.num_prompt, num_cached=usage.num_cached or 0, num_output=usage.num_output)
