"""The turns of a request as messages of plain text, calls and results, and its cache breakpoints.

    user       [result, result, text, text]       ->  tool, tool, user
    assistant  [reasoning, text, text, call, call]  ->  assistant, with its reasoning and two calls

Reasoning that another maker signed is dropped; other content that is not text becomes a short text, and the transcript
says so. A cache breakpoint (`cache_control`) is a place in the messages after blocks were joined; before it lie
the tools, the system prompt and the messages so far, in whatever order the model's template words them.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec

from hotloop.chat.prompt import CacheBreakpoint
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Role, Thought, ToolCall
from hotloop.core.structs import compiled
from hotloop.server.options import convert
from hotloop.wire.field import Json
from hotloop.wire.part import Api, Call, Part, Text, ToolChange, ToolResult, Turn
from hotloop.wire.readable import Reading
from hotloop.wire.request import ApiRequest, ApiTool

# An answer comes back in as many parts as it was given out in, and was one text; other texts are lines of their own.
_JOINERS: dict[Role, str] = {"assistant": "", "user": "\n", "system": "\n"}

_OWN = "hotloop:"


@compiled
class CacheControl(msgspec.Struct, kw_only=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


def _parse_breakpoint(mark: Json, place: str, index: int, num_chars: int | None = None) -> CacheBreakpoint:
    return CacheBreakpoint(index, num_chars, 3600 if convert(mark, CacheControl, place).ttl == "1h" else 300)


class Transcript(NamedTuple):
    messages: tuple[Message, ...]
    breakpoints: list[CacheBreakpoint]
    changes: tuple[str, ...] = ()
    """What was replaced by a short text."""
    late: tuple[int, ...] = ()
    """For each `ToolChange`, the message behind which it is; -1 for before all."""


@compiled
class _Draft(msgspec.Struct):
    role: Role
    content: str = ""
    name: str | None = None
    call_id: str | None = None
    calls: list[ToolCall] = msgspec.field(default_factory=list)
    reasoning: list[Thought] = msgspec.field(default_factory=list)

    def say(self, text: str) -> None:
        self.content = _JOINERS[self.role].join((self.content, text)) if self.content and text else self.content + text

    def finish(self) -> Message:
        return Message(self.role, self.content, self.name, tuple(self.calls), self.call_id, tuple(self.reasoning))


def parse_transcript(request: ApiRequest) -> Transcript:
    """Raises RequestError for what is not supported. Breakpoints are Anthropic's: of tools, then turns, then all."""
    Reading().check(request.turns)
    messages, breakpoints, changes, late = parse_turns(request.turns, request.api)
    if not messages:
        raise RequestError(f"{request.turns_param} must contain at least one message", param=request.turns_param)
    if request.api != "messages":
        return Transcript(messages, [], changes, late)
    # Built-in ones are left out of the prompt, and late ones are not told of with the others.
    told = accumulate(isinstance(tool, ApiTool) and not (tool.is_deferred or tool.is_inline) for tool in request.tools)
    marks = [(tool.mark, i, num_told) for i, (tool, num_told) in enumerate(zip(request.tools, told, strict=True))]
    of_tools = [
        _parse_breakpoint(mark, f"tools[{i}].cache_control", num - 1) for mark, i, num in marks if mark is not None
    ]
    if request.cache.mark is not None:
        end = len(messages) - 1, len(messages[-1].content)
        breakpoints.append(_parse_breakpoint(request.cache.mark, "cache_control", *end))
    return Transcript(messages, [*of_tools, *breakpoints], changes, late)


def parse_turns(turns: Iterable[Turn], api: Api) -> Transcript:
    """In Anthropic's messages, turns of one role that follow each other are one, and parts may be marked."""
    drafts: list[_Draft] = []
    breakpoints: list[CacheBreakpoint] = []
    late: list[int] = []
    joins, reading = api == "messages", Reading()
    for turn in reading.read(turns):
        is_answer = turn.role == "assistant"
        is_joined = joins and bool(drafts) and drafts[-1].role == turn.role
        has_begun = is_joined or is_answer or not (turn.parts or joins)
        if has_begun and not is_joined:  # it was its turn, even if nothing of it is left
            drafts.append(_Draft(turn.role, name=turn.name))
        for part in turn.parts:
            match part:
                case Text():
                    if not has_begun:
                        drafts.append(_Draft(turn.role, name=turn.name))
                    has_begun = True
                    drafts[-1].say(part.text)
                case Call() if is_answer:
                    drafts[-1].calls.append(ToolCall(part.id, part.flat_name, part.arguments))
                case ToolResult() if turn.role == "user":
                    drafts.append(_Draft("tool", _result_text(part), call_id=part.call_id or None))
                    late += [len(drafts) - 1 for inner in part.parts if isinstance(inner, ToolChange)]
                    has_begun = False
                case ToolChange():
                    late.append(len(drafts) - 1)
                case Thought() if is_answer:
                    own = take_back(part)
                    drafts[-1].reasoning += [own] if own else []
                case _:
                    raise _unsupported(part, turn)
            if joins and not isinstance(part, Thought) and part.mark is not None and drafts:
                end = len(drafts) - 1, len(drafts[-1].content)
                breakpoints.append(_parse_breakpoint(part.mark, f"{part.place}.cache_control", *end))
    return Transcript(tuple(draft.finish() for draft in drafts), breakpoints, reading.changes, tuple(late))


def _result_text(result: ToolResult) -> str:
    for part in result.parts:
        if not isinstance(part, Text | ToolChange):
            raise _unsupported(part)
    return result.text


def _unsupported(part: Part, turn: Turn | None = None) -> RequestError:
    at = part.at if not isinstance(part, Thought) else turn.at if turn else None
    kind = "thinking" if isinstance(part, Thought) else at.value.get("type") if at else None
    place = at.place if at else ""
    return RequestError(f"{place}: content of type {kind!r:.100} is not supported: only text is", param=place)


def sign(reasoning: Thought) -> Thought:
    """Anthropic's clients want a signature and give it back. It is a digest of the text, which is no secret: reasoning
    is taken back where the model of any replica wrote it, not where another maker's did or somebody changed it."""
    return replace(reasoning, signature=_OWN + _digest(reasoning.text), maker="messages")


def take_back(reasoning: Thought) -> Thought | None:
    """Reasoning that comes back, for the model to read; None if another maker's model wrote it. What carries some that
    is not shown is told in `wire.part`."""
    if not reasoning.maker:
        return reasoning
    is_own = reasoning.maker == "messages" and reasoning.signature == _OWN + _digest(reasoning.text)
    return Thought(reasoning.text) if is_own else None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
