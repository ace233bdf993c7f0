"""How each family of models marks its reasoning, which of these a model does, and an answer's reasoning told apart from
what a family's own parser reads.

Reasoning stands between two marks. The first is written by the model, or by the template at the end of the prompt.
What space belongs around the marks, and by which variables it is switched on and off, is read from the template.

Invariant: as in `stream`, how the text is cut changes nothing but how the deltas are cut. Every stretch between two
marks has a parser of its own:

    <think> reasoning <tool_call> call </tool_call> </think> text <think> reasoning </think> text
            one parser: its text is reasoning until  |        one  |        one       |       one
            it finds a call, which ends the reasoning |

A closing ends reasoning unless it stands in a call. Outside of one, marks count where a line begins, since an answer
may speak of them; special tokens count everywhere. Space around marks belongs to the format.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hotloop.chat.stream import CallParser, num_held
from hotloop.core.config import ThinkingFormatName
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Thought
from hotloop.core.reasoning import Reasoning
from hotloop.core.stream import CallOpened, StreamEvent, TextDelta, ThoughtClosed, ThoughtDelta
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

_REASONING, _ANSWER = "Hmmmm", "Aaaah"
# The variables by which templates switch reasoning, and what they call on and off.
_SWITCHES: dict[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "thinking_mode": ("enabled", "disabled"),
}
# How many tokens an effort stands for where the template does not know of efforts; others: as many as the model likes.
_BUDGETS = {"minimal": 256, "low": 1024, "medium": 8192}


@dataclass(frozen=True, slots=True)
class ReasoningWish:
    """What a request asks for; None is what it leaves to the model."""

    is_wanted: bool | None = None
    effort: str | None = None
    max_tokens: int | None = None

    def variables(self, source: str) -> Mapping[str, Any]:
        """What the template of this source is told."""
        switches = (
            {} if self.is_wanted is None else {name: pair[not self.is_wanted] for name, pair in _SWITCHES.items()}
        )
        if self.effort:
            switches["reasoning_effort"] = self.effort
        return {name: value for name, value in switches.items() if re.search(rf"\b{name}\b", source)}

    def limit(self, source: str, most: int | None) -> int | None:
        """Most tokens of reasoning, with the template of this source; `most` is what anybody may have."""
        if self.is_wanted is False:
            return 0
        by_effort = None if "reasoning_effort" in self.variables(source) else _BUDGETS.get(self.effort or "")
        return min((limit for limit in (self.max_tokens, by_effort, most) if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """One family's marks."""

    name: ThinkingFormatName
    opening: str
    closing: str
    has_channels: bool = False
    """Whether an answer is made of messages with headers, of which reasoning is one kind."""
    tail: str = ""
    """The space that the template has before the closing."""
    gap: str = ""
    """What it has between the closing and the answer."""
    is_special: bool = False
    """Whether a mark is a special token, so that the text must show it, and cannot spell it by chance."""
    is_opened_by_template: bool = False

    def is_open_in(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins inside its reasoning."""
        return prompt[-200:].rstrip().endswith(self.opening.rstrip())

    def limit(self, prompt: str, tokenizer: Tokenizer, max_tokens: int | None) -> Reasoning:
        return Reasoning(
            opening_ids=tuple(tokenizer.encode(self.opening)),
            closing_ids=tuple(tokenizer.encode(self.closing)),
            ending_ids=tuple(tokenizer.encode(self.tail + self.closing + self.gap)),
            gap_ids=tuple(tokenizer.encode(self.gap)),
            is_open=self.is_open_in(prompt),
            max_tokens=max_tokens,
        )


HARMONY = ReasoningFormat(
    "harmony",
    "<|channel|>analysis<|message|>",
    "<|end|>",
    has_channels=True,
    gap="<|start|>assistant",
)
# The first that a template speaks of is the model's.
_FORMATS: dict[str, ReasoningFormat] = {
    each.name: each
    for each in (
        HARMONY,
        ReasoningFormat("gemma", "<|channel>thought\n", "<channel|>"),
        ReasoningFormat("minimax", "<mm:think>", "</mm:think>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("think", "<think>", "</think>"),
    )
}


def choose_reasoning(
    template: ChatTemplate | None, tokenizer: Tokenizer, name: ThinkingFormatName = "auto"
) -> ReasoningFormat | None:
    """The format of this name, or the one that template and vocabulary speak of; None if the model does not reason."""
    if name == "off" or template is None:
        return None
    if name != "auto":
        return _fit(_FORMATS[name], template, tokenizer)
    spoken = [each for each in _FORMATS.values() if _is_spoken(each, template.source)]
    known = [each for each in _FORMATS.values() if _is_known(each, tokenizer)]
    return _fit((spoken or known)[0], template, tokenizer) if spoken or known else None


def _is_spoken(reasoning: ReasoningFormat, source: str) -> bool:
    if reasoning.has_channels:
        return "<|channel|>" in source and "<|message|>" in source
    return any(mark.strip() in source for mark in (reasoning.opening, reasoning.closing))


def _is_known(reasoning: ReasoningFormat, tokenizer: Tokenizer) -> bool:
    return all(len(tokenizer.encode(mark)) == 1 for mark in (reasoning.opening, reasoning.closing))


def _fit(reasoning: ReasoningFormat, template: ChatTemplate, tokenizer: Tokenizer) -> ReasoningFormat:
    """The format, with what can be found out about it by trying the template."""
    is_special = tokenizer.has_special(tokenizer.encode(reasoning.opening + reasoning.closing))
    opened = _render(template, Message("user", "."), is_answer_next=True)
    fitted = replace(reasoning, is_special=is_special, is_opened_by_template=reasoning.is_open_in(opened))
    if reasoning.has_channels:
        return fitted
    said = _render(template, Message("user", "."), Message("assistant", _ANSWER, thoughts=(Thought(_REASONING),)))
    around = re.search(rf"{_REASONING}(\s*){re.escape(reasoning.closing)}(\s*){_ANSWER}", said)
    return replace(fitted, tail=around[1], gap=around[2]) if around else fitted


def _render(template: ChatTemplate, *messages: Message, is_answer_next: bool = False) -> str:
    try:
        return template.render(messages, add_generation_prompt=is_answer_next)
    except RequestError:
        return ""


class _Trimmed:
    """A text without the space around it, as it comes."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._space = ""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __str__(self) -> str:
        return "".join(self._pieces)

    def push(self, text: str) -> str:
        """What is sure to be part of it."""
        text = self._space + text if self._pieces else text.lstrip()
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._pieces.append(body)
        return body


class ReasoningParser:
    """Reads reasoning, and lets a parser of `make_parser` read each stretch of the answer."""

    def __init__(self, reasoning: ReasoningFormat, make_parser: Callable[[], CallParser], *, is_open: bool) -> None:
        self._reasoning = reasoning
        self._make_parser = make_parser
        self._parser = make_parser()
        self._is_reasoning = is_open
        self._text = _Trimmed()
        self._is_blank = True  # whether nothing but space stands on the line so far
        self._is_behind_reasoning = False  # whether nothing but space was said since the last reasoning
        self._space = ""  # of the answer's text, before reasoning or something else
        self._num_calls_before = 0  # of the stretches before this one
        self._pending = ""  # might be the beginning of a mark

    @property
    def num_calls(self) -> int:
        return self._num_calls_before + self._parser.num_calls

    @property
    def is_calling(self) -> bool:
        return self._parser.is_calling

    def push(self, text: str) -> list[StreamEvent]:
        self._pending += text
        events: list[StreamEvent] = []
        while mark := self._next_mark():
            at = self._pending.index(mark)
            events += self._say(at)
            events += self._meet(mark)
        events += self._say(len(self._pending) - num_held(self._pending, self._marks))
        return events

    def finish(self, *, is_cut: bool = False) -> list[StreamEvent]:
        events = self._say(len(self._pending))
        events += self._tell(self._parser.finish(is_cut=is_cut))
        return [*events, *self._close_reasoning(), *self._tell_space()]

    def _next_mark(self) -> str | None:
        found = [(at, mark) for mark in self._marks if (at := self._pending.find(mark)) >= 0]
        return min(found)[1] if found else None

    @property
    def _marks(self) -> tuple[str, str]:
        return self._reasoning.opening, self._reasoning.closing

    def _say(self, num_chars: int) -> list[StreamEvent]:
        text, self._pending = self._pending[:num_chars], self._pending[num_chars:]
        if text:
            line = text.rpartition("\n")[2]
            self._is_blank = not line.strip() and (self._is_blank or "\n" in text)
        return list(self._tell(self._parser.push(text))) if text else []

    def _meet(self, mark: str) -> list[StreamEvent]:
        """A mark is the next of the text. It may be the answer's own words."""
        is_opening = mark == self._reasoning.opening
        if self._parser.is_calling:
            is_mark = False
        elif self._is_reasoning:
            is_mark = not is_opening or not self._text  # a model may open what the template has opened
        else:
            is_mark = self._is_blank or self._reasoning.is_special
        if not is_mark:
            return self._say(1)
        self._pending = self._pending[len(mark) :]
        return self._turn(is_opening)

    def _turn(self, is_opening: bool) -> list[StreamEvent]:
        """Reasoning begins or ends here, and with it another stretch. A second mark of a kind says nothing new."""
        if is_opening == self._is_reasoning:
            return []
        events = [*self._tell(self._parser.finish()), *self._close_reasoning()]
        self._num_calls_before += self._parser.num_calls
        self._parser = self._make_parser()
        self._is_reasoning, self._is_behind_reasoning, self._is_blank = is_opening, not is_opening, True
        self._space = ""
        return events

    def _tell(self, events: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
        for event in events:
            if isinstance(event, TextDelta):
                yield from self._tell_reasoning(event.text) if self._is_reasoning else self._tell_text(event.text)
            elif not isinstance(event, ThoughtDelta | ThoughtClosed):
                if isinstance(event, CallOpened):
                    yield from self._close_reasoning()
                    yield from self._tell_space()
                yield replace(event, index=event.index + self._num_calls_before)

    def _tell_reasoning(self, text: str) -> Iterator[StreamEvent]:
        if body := self._text.push(text):
            yield ThoughtDelta(body)

    def _tell_text(self, text: str) -> Iterator[StreamEvent]:
        """None follows a call, as everywhere; and space around reasoning is not content."""
        if self._num_calls_before:
            return
        text = text.lstrip() if self._is_behind_reasoning else self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._is_behind_reasoning = False
            yield TextDelta(body)

    def _tell_space(self) -> Iterator[StreamEvent]:
        space, self._space = self._space, ""
        if space:
            yield TextDelta(space)

    def _close_reasoning(self) -> list[StreamEvent]:
        """Empty reasoning is none: formats have it where there is nothing to say."""
        self._is_reasoning = False
        text, self._text = str(self._text), _Trimmed()
        return [ThoughtClosed(Thought(text))] if text else []
