"""From a conversation to the tokens the model reads.

The model's own template renders the prompt and its own tokenizer encodes it. What is done on the way, so that a prompt
begins as the one before it did, is in `assembly`; each of it is told in `Prompt.changes` and can be switched off.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from hotloop.chat.assembly.recall import WrittenCalls
from hotloop.chat.assembly.spans import PromptPlace, PromptSpan, Reword, find_places, find_spans
from hotloop.chat.assembly.splice import Splicer
from hotloop.chat.assembly.system_turns import keeps_system_turns, spread_notes
from hotloop.chat.assembly.tool_words import ToolWords
from hotloop.chat.harmony import HarmonyParser
from hotloop.chat.reasoning import ReasoningFormat, ReasoningParser, ReasoningWish
from hotloop.chat.stream import CallParser, CallsOnly, PlainText
from hotloop.chat.structure import Structure
from hotloop.chat.tool_format import ToolFormat, Tools, Turns
from hotloop.chat.tools import Calling
from hotloop.core.config import ServerConfig
from hotloop.core.errors import PromptTooLong, RequestError
from hotloop.core.message import Message, Tool
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer
from hotloop.stable.late import Marked, ToolHistory, all_at_once, join_late, place_marked, tell_late
from hotloop.stable.nonces import Nonces
from hotloop.stable.system import word_system_turns
from hotloop.stable.tools import canonical_tools


@dataclass(frozen=True)
class Prompt:
    """What the model reads: the tokens, and the text they were cut from."""

    token_ids: Sequence[int]
    find_text: Callable[[], str] = field(repr=False, compare=False)
    changes: tuple[str, ...] = ()
    """What was done to the conversation so that it begins as it did before."""
    num_exact: int = 0
    """Tokens that are there because they were generated so, not because the tokenizer would cut them so."""
    find_spans: Callable[[], tuple[PromptSpan, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def text(self) -> str:
        """For a prompt that came as tokens it is spelled when somebody asks: most prompts are long and nobody does."""
        return self.find_text()

    @cached_property
    def spans(self) -> tuple[PromptSpan, ...]:
        """Where its tokens came from; empty if it came as tokens."""
        return self.find_spans()


@dataclass(frozen=True, slots=True)
class CacheBreakpoint:
    """The prompt up to the end of this tool, or up to so many characters of this message, is worth keeping so long."""

    index: int
    """Of the tool or the message; the system prompt is the first message."""
    num_chars: int | None
    """How much of the message's content lies before the breakpoint; None for a tool."""
    ttl_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """What a chat body asks for, in no API's words."""

    messages: Turns
    tools: Tools = ()
    """Those the model is shown before the conversation begins. Tools that may not be called are shown as well, so that
    what is cached of the prompt is still good."""
    late: Marked = ()
    """Tools that the client says came late, or went."""
    calling: Calling = field(default_factory=Calling)
    structures: Sequence[Structure] = ()
    """What an answer that is not a call must look like: one of them at most."""
    reasoning: ReasoningWish = field(default_factory=ReasoningWish)
    breakpoints: Sequence[CacheBreakpoint] = ()
    retention_s: int | None = None
    """For how long the whole prompt is worth keeping, if that is said."""
    is_prefill_only: bool = False
    """Whether there is no answer: the engine cannot say nothing, so it says one token to nobody."""
    changes: tuple[str, ...] = ()
    """What was left out while the body was read."""
    is_answer_next: bool = True
    """Whether the prompt ends where the assistant's answer begins."""
    begun: str = ""
    """What the answer begins with, if it is next: the model goes on from there."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More variables for the template, such as `enable_thinking`."""


class Prompts:
    """Makes the prompts of one model, and remembers what that takes, each `scope` its own. Used from any thread."""

    def __init__(
        self,
        template: ChatTemplate | None,
        tokenizer: Tokenizer,
        tool_format: ToolFormat | None = None,
        rules: ServerConfig | None = None,
        reasoning: ReasoningFormat | None = None,
        *,
        max_context: int | None = None,
        sharing: Sharing = UNSHARED,
    ) -> None:
        """`rules` say what may be done to a prompt so that it begins as the one before it did. Prompts far beyond
        `max_context` are refused before they are tokenized."""
        self._template = template
        self._tokenizer = tokenizer
        self._format = tool_format
        self._reasoning = reasoning
        self.source = template.source if template else ""
        self._rules = rules or ServerConfig()
        self._splicer = Splicer(tokenizer, self._rules.prompt_memory_tokens, max_context, sharing)
        self._nonces = Nonces(sharing=sharing)
        self._calls = WrittenCalls(sharing)
        keeps_late_system = template is not None and keeps_system_turns(template)
        self._words_late_system = self._rules.late_system_as_user and template is not None and not keeps_late_system
        self._tells_late_tools = self._rules.late_tools and (self._words_late_system or keeps_late_system)
        self._tool_history = ToolHistory(sharing)
        self._tool_words = ToolWords(self._word_head)

    def chat(self, conversation: ChatInput, *, scope: str = "") -> Prompt:
        """The conversation in the model's own words. Raises RequestError where there is no template, or it refuses,
        and PromptTooLong.

        The format words tools and calls where the template does not; without one the template is left to it.
        """
        self._splicer.check_bytes(sum(len(message.content) for message in conversation.messages))
        variables = conversation.reasoning.variables(self.source)
        conversation = replace(conversation, extra={**variables, **conversation.extra})
        messages, changes = self._settle(conversation.messages, scope)
        messages, tools, placed = self._place_tools(messages, conversation, scope)
        changes += placed
        reword = partial(self._word, conversation)
        messages, text, verbatim = self._word_verbatim(messages, tools, reword)
        changes += _left_out(conversation.messages, text)
        encoded = self._splicer.encode(text, scope=scope)

        def spans() -> tuple[PromptSpan, ...]:
            places = find_places(encoded.text, messages, tools, reword)
            return find_spans(_as_given(places, tools, conversation.tools), encoded, self._tokenizer)

        return Prompt(encoded.token_ids, lambda: encoded.text, changes + verbatim, encoded.num_exact, spans)

    def text(self, text: str, *, has_bos: bool = True, scope: str = "") -> Prompt:
        """Plain text, as a completion continues it; it begins as the model wants a text to, unless told otherwise."""
        try:
            encoded = self._splicer.encode(text, add_bos=has_bos and self._tokenizer.wants_bos, scope=scope)
        except PromptTooLong as error:
            error.param = "prompt"
            raise
        places = [PromptPlace("text", 0, 0, len(encoded.text))]
        spans = partial(find_spans, places, encoded, self._tokenizer)
        return Prompt(encoded.token_ids, lambda: encoded.text, num_exact=encoded.num_exact, find_spans=spans)

    def tokens(self, token_ids: Sequence[int], *, param: str = "prompt") -> Prompt:
        """Tokens a client has cut itself. Raises RequestError where the model has no such token."""
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self._tokenizer.vocab_size):
            unknown = next(each for each in token_ids if not 0 <= each < self._tokenizer.vocab_size)
            raise RequestError(f"{param}: the model has no token {unknown}", param=param)
        return Prompt(token_ids, lambda: self._tokenizer.decode(token_ids, keep_special=True))

    def order(self, tools: Sequence[Tool]) -> Tools:
        """The tools as prompt and grammar should have them."""
        return canonical_tools(tools) if self._rules.canonical_tools else tuple(tools)

    def parser(
        self, tools: Sequence[Tool], *, can_call: bool = True, must_call: bool = False, is_reasoning: bool = False
    ) -> CallParser:
        """The parser for an answer, which may begin in reasoning; what it finds is known again when it comes back."""

        def make() -> CallParser:
            if not can_call or not self._format:
                return PlainText()
            parser = self._format.parser(tools)
            return self._calls.watch(parser) if self._rules.exact_turns else parser

        if self._reasoning and self._reasoning.has_channels:
            parser: CallParser = HarmonyParser(can_call=can_call)
        else:
            parser = ReasoningParser(self._reasoning, make, is_open=is_reasoning) if self._reasoning else make()
        return CallsOnly(parser) if must_call else parser

    def remember(self, prompt_ids: Sequence[int], output_ids: Sequence[int], *, scope: str = "") -> None:
        """An answer, whatever ended it, and the prompt it answers. To be told before the client can come back."""
        if self._rules.exact_turns:
            self._splicer.remember(prompt_ids, output_ids, scope=scope)

    def _settle(self, messages: Turns, scope: str) -> tuple[Turns, tuple[str, ...]]:
        messages, changes = self._calls.restore(messages)
        if self._rules.move_volatile_lines:
            messages, moved = self._nonces.settle(messages, scope=scope)
            changes += moved
        if self._words_late_system and any(message.role == "system" for message in messages[1:]):
            changes += ("messages: later system messages are worded as the user's, since the template refuses them",)
        return messages, changes

    def _place_tools(
        self, messages: Turns, conversation: ChatInput, scope: str
    ) -> tuple[Turns, Tools, tuple[str, ...]]:
        """The messages with what is told behind them, the tools of the head, and what was done."""
        given = self.order(conversation.tools)
        is_reordered = repr(given) != repr(conversation.tools)  # which, unlike equality, tells the order of keys
        changes = ("tools: put into a canonical order",) if is_reordered else ()
        if not self._tells_late_tools:
            return messages, self.order(all_at_once(given, [change for _, change in conversation.late])), changes
        marked = place_marked(messages, given, conversation.late)
        seen = self._tool_history.settle(messages, self.order(marked.head), scope=scope)
        late = join_late(seen.head, seen.late, marked.late)
        noted = [*messages]
        for i, change in late.items():
            ordered = replace(change, added=self.order(change.added))
            noted[i] = replace(noted[i], note=self._tool_words.say(ordered))
        return tuple(noted), seen.head, changes + tell_late(late)

    def _word_head(self, tools: Tools) -> str:
        return self._word(ChatInput(messages=()), (Message("user", "."),), tools)

    def _word_verbatim(self, messages: Turns, tools: Tools, reword: Reword) -> tuple[Turns, str, tuple[str, ...]]:
        """The text, with answers in their own words unless the template minds that; and from which messages."""
        alone = ChatInput(messages=(), is_answer_next=False)
        verbatim, changes = self._calls.verbatim(
            messages, lambda message: self._word(alone, (Message("user", "."), message), ())
        )
        try:
            return verbatim, reword(verbatim, tools), changes
        except RequestError:
            if not changes:
                raise
            return messages, reword(messages, tools), ()

    def _word(self, conversation: ChatInput, messages: Turns, tools: Tools) -> str:
        if self._template is None:
            raise RequestError("this model has no chat template: use /v1/completions", param="messages")
        messages = spread_notes(messages)
        if self._words_late_system:
            messages = word_system_turns(messages)
        if self._format:
            messages, tools = self._format.prepare(messages, tools)
        worded = self._template.render(
            messages, tools=tools, add_generation_prompt=conversation.is_answer_next, extra=conversation.extra
        )
        if conversation.begun and self._reasoning and self._reasoning.is_open_in(worded):
            worded += self._reasoning.tail + self._reasoning.closing + self._reasoning.gap
        if self._format and self._rules.exact_turns:
            worded = self._format.as_written(worded)
        return worded + conversation.begun


def _left_out(messages: Turns, text: str) -> tuple[str, ...]:
    """Most templates have no place for reasoning that is older than the user's last words."""
    return tuple(
        f"messages[{i}]: the chat template leaves out its reasoning"
        for i, message in enumerate(messages)
        if any(each.shown.strip() not in text for each in message.thoughts)
    )


def _as_given(places: Iterable[PromptPlace], tools: Tools, given: Tools) -> list[PromptPlace]:
    """The places of tools by where a tool stood in the request, not in the prompt."""
    indexes = {tool.name: i for i, tool in enumerate(given)}
    return [
        replace(place, index=indexes.get(tools[place.index].name))
        if place.kind == "tool" and place.index is not None
        else place
        for place in places
    ]
