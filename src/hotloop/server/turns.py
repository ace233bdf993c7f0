"""The turns of a request as messages of plain text, calls and results, and where it says it is worth keeping.

    user       [result, result, text, text]       ->  tool, tool, user
    assistant  [thought, text, text, call, call]  ->  assistant, with what it thought and two calls

Thoughts that another maker signed are dropped; for what else is not text a short text stands, and the transcript says
so. A cache breakpoint (`cache_control`) is a place in the messages after blocks were joined; before it lie
the tools, the system prompt and the messages so far, in whatever order the model's template words them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec

from hotloop.chat.assembly.spans import PromptSpan
from hotloop.chat.prompt import Prompt
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Role, Thought, ToolCall
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.holds import Pin
from hotloop.server.options import convert
from hotloop.server.thinking import take_back
from hotloop.wire.field import Json
from hotloop.wire.part import Api, Call, Part, Text, ToolChange, ToolResult, Turn
from hotloop.wire.readable import Reading
from hotloop.wire.request import ApiRequest, ApiTool

# An answer comes back in as many parts as it was given out in, and was one text; other texts are lines of their own.
_JOINERS: dict[Role, str] = {"assistant": "", "user": "\n", "system": "\n"}

_OF_MESSAGES = ("system", "message", "call", "late_tools")

MAX_BREAKPOINTS = 4
"""As many as Anthropic takes; of more, the last."""


class CacheControl(msgspec.Struct, kw_only=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


@dataclass(frozen=True, slots=True)
class CacheHint:
    """The prompt up to the end of this tool, or up to so many characters of this message, is worth keeping so long."""

    index: int
    """Of the tool or the message; the system prompt is the first message."""
    num_chars: int | None
    """How much of the message's content lies before the breakpoint; None for a tool."""
    ttl_s: int


def _parse_hint(mark: Json, place: str, index: int, num_chars: int | None = None) -> CacheHint:
    return CacheHint(index, num_chars, 3600 if convert(mark, CacheControl, place).ttl == "1h" else 300)


class HintedMessages(NamedTuple):
    messages: tuple[Message, ...]
    hints: list[CacheHint]
    changes: tuple[str, ...] = ()
    """What was replaced by a short text."""
    late: tuple[int, ...] = ()
    """For each `ToolChange`, the message behind which it is; -1 for before all."""


class _Draft(msgspec.Struct):
    role: Role
    content: str = ""
    name: str | None = None
    call_id: str | None = None
    calls: list[ToolCall] = msgspec.field(default_factory=list)
    thoughts: list[Thought] = msgspec.field(default_factory=list)

    def say(self, text: str) -> None:
        self.content = _JOINERS[self.role].join((self.content, text)) if self.content and text else self.content + text

    def finish(self) -> Message:
        return Message(self.role, self.content, self.name, tuple(self.calls), self.call_id, tuple(self.thoughts))


def parse_transcript(request: ApiRequest) -> HintedMessages:
    """Raises RequestError for what is not supported. Breakpoints are Anthropic's: of tools, then turns, then all."""
    Reading().check(request.turns)
    messages, hints, changes, late = parse_turns(request.turns, request.api)
    if not messages:
        raise RequestError(f"{request.turns_param} must contain at least one message", param=request.turns_param)
    if request.api != "messages":
        return HintedMessages(messages, [], changes, late)
    # Built-in ones are left out of the prompt, and late ones are not told of with the others.
    told = accumulate(isinstance(tool, ApiTool) and not (tool.is_deferred or tool.is_inline) for tool in request.tools)
    marks = [(tool.mark, i, num_told) for i, (tool, num_told) in enumerate(zip(request.tools, told, strict=True))]
    of_tools = [_parse_hint(mark, f"tools[{i}].cache_control", num - 1) for mark, i, num in marks if mark is not None]
    if request.cache.mark is not None:
        end = len(messages) - 1, len(messages[-1].content)
        hints.append(_parse_hint(request.cache.mark, "cache_control", *end))
    return HintedMessages(messages, [*of_tools, *hints], changes, late)


def parse_turns(turns: Iterable[Turn], api: Api) -> HintedMessages:
    """In Anthropic's messages, turns of one role that follow each other are one, and parts may be marked."""
    drafts: list[_Draft] = []
    hints: list[CacheHint] = []
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
                    drafts[-1].thoughts += [own] if own else []
                case _:
                    raise _unsupported(part, turn)
            if joins and not isinstance(part, Thought) and part.mark is not None and drafts:
                end = len(drafts) - 1, len(drafts[-1].content)
                hints.append(_parse_hint(part.mark, f"{part.place}.cache_control", *end))
    return HintedMessages(tuple(draft.finish() for draft in drafts), hints, reading.changes, tuple(late))


def _result_text(result: ToolResult) -> str:
    for part in result.parts:
        if not isinstance(part, Text | ToolChange):
            raise _unsupported(part)
    return result.text


def _unsupported(part: Part, turn: Turn | None = None) -> RequestError:
    at = part.at if not isinstance(part, Thought) else turn.at if turn else None
    kind = "thinking" if isinstance(part, Thought) else at.value.get("type") if at else None
    place = at.place if at else ""
    return RequestError(f"{place}: content of type {kind!r:.100} is not supported here, only text is", param=place)


def find_pins(
    hints: Sequence[CacheHint], messages: Sequence[Message], prompt: Prompt, tokenizer: Tokenizer
) -> tuple[Pin, ...]:
    """Which tokens the breakpoints stand for; one whose place the prompt does not tell is left out."""
    ends = [(_find_end(hint, messages, prompt, tokenizer), hint.ttl_s) for hint in hints[-MAX_BREAKPOINTS:]]
    return tuple(Pin(end, ttl_s) for end, ttl_s in ends if end)


def _find_end(hint: CacheHint, messages: Sequence[Message], prompt: Prompt, tokenizer: Tokenizer) -> int:
    tools = [span for span in prompt.spans if span.kind == "tool"]
    if hint.num_chars is None:
        return max((span.end for span in tools if span.index in range(hint.index + 1)), default=0)
    own = [span for span in prompt.spans if span.kind in _OF_MESSAGES and span.index == hint.index]
    if not own:
        return 0
    num_after = len(messages[hint.index].content) - hint.num_chars
    end = _find_token(own[0], num_after, prompt, tokenizer) if num_after else own[-1].end
    return max(end, *(span.end for span in tools)) if tools else end


def _find_token(span: PromptSpan, num_after: int, prompt: Prompt, tokenizer: Tokenizer) -> int:
    """Where the last characters of a span begin. Counted from its end: what is moved out of a prompt is at its top."""
    before = prompt.text[span.place.begin : max(span.place.end - num_after, span.place.begin)].encode()
    sizes = (len(tokenizer.token_bytes(token_id)) for token_id in prompt.token_ids[span.begin : span.end])
    return span.begin + bisect_right([*accumulate(sizes)], len(before))
