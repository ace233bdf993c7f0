"""From what a request asks for to what the engine is given, and how the answer is read: one call for each request.

    ChatInput ─> prompt (template, tokens) ─> grammar (structure, tools) ─> Prepared ─> engine
    events <─ parser (reasoning, calls, text; what the grammar did not enforce is checked) <─ the answer's text

Nothing here knows an API or the engine. Tokenizing a long history and compiling a schema take a while, so this is
called off the event loop.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from hotloop.chat.assembly.spans import PromptSpan
from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import CacheBreakpoint, ChatInput, Prompt, Prompts
from hotloop.chat.reasoning import choose_reasoning
from hotloop.chat.schema_relaxer import CheckedParser, FindViolation, GrammarCompiler, SchemaRelaxer
from hotloop.chat.stream import CallParser, DiscardOutput, PlainText
from hotloop.chat.structure import AnswerGrammar, GrammarBuilder, Structure, parse_constraint
from hotloop.chat.tools import Calling
from hotloop.core.config import ServerConfig
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.message import Message
from hotloop.core.reasoning import Reasoning
from hotloop.core.retention import Pin
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

MAX_BREAKPOINTS = 4
"""As many as Anthropic takes; of more, the last."""

_OF_MESSAGES = ("system", "message", "call", "late_tools")

OnChange = Callable[[str], None]
"""Told of what an answer breaks that the grammar did not enforce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextInput:
    """Texts to go on from, or their tokens, and what comes behind each."""

    texts: Sequence[str | Sequence[int]]
    structures: Sequence[Structure] = ()
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the engine is given, and how the text of the answer is read."""

    prompts: Sequence[Prompt] = ()
    """A chat has one."""
    grammar: Grammar | None = None
    reasoning: Reasoning | None = None
    parser: Callable[[OnChange], CallParser] = lambda _: PlainText()
    """Made anew for each answer."""
    changes: tuple[str, ...] = ()
    """What was done otherwise than it was asked for."""
    pins: tuple[Pin, ...] = ()
    can_call: bool = False
    keep_special: bool = False
    """Whether the answer's text must show special tokens, since the parser looks for them."""


class Chat:
    """Chats with one model. Used from any thread; what is remembered of them is apart for each `scope`."""

    def __init__(
        self,
        template: ChatTemplate | None,
        tokenizer: Tokenizer,
        compiler: GrammarCompiler,
        find_violation: FindViolation,
        config: ServerConfig,
        max_context: int,
        sharing: Sharing = UNSHARED,
    ) -> None:
        self.tokenizer = tokenizer
        self._find_violation = find_violation
        self.max_context = max_context
        self._max_reasoning = config.max_thinking
        self._format = choose_format(template, tokenizer, config.tool_format)
        self._relaxer = SchemaRelaxer(self._format, compiler)
        self.reasoning = choose_reasoning(template, tokenizer, config.thinking_format)
        self.prompts = Prompts(
            template, tokenizer, self._format, config, self.reasoning, max_context=max_context, sharing=sharing
        )

    def prepare(self, given: ChatInput | TextInput, *, scope: str = "") -> Prepared:
        """Raises RequestError, and PromptTooLong for a text far beyond the context. No grammar is compiled for a prompt
        that leaves no room for an answer, since the engine refuses it."""
        return self._prepare_texts(given, scope) if isinstance(given, TextInput) else self._prepare_chat(given, scope)

    def _prepare_chat(self, given: ChatInput, scope: str) -> Prepared:
        prompt, calling = self.prompts.chat(given, scope=scope), given.calling
        answer = AnswerGrammar() if given.is_prefill_only else self._constrain([prompt], given.structures, calling)
        grammar, reasoning = answer.grammar, None
        if given.begun:
            grammar = grammar and replace(grammar, begun=given.begun)
        else:
            grammar = grammar if calling.is_possible or not grammar else self._format.wrap(grammar)
            reasoning = None if given.is_prefill_only else self._limit_reasoning(prompt, given)
        parser = partial(
            self.prompts.parser,
            answer.tools,
            can_call=calling.is_possible,
            must_call=calling.is_required,
            is_reasoning=reasoning is not None and reasoning.is_open,
        )
        whole = (Pin(len(prompt.token_ids), given.retention_s),) if given.retention_s else ()
        return Prepared(
            prompts=[prompt],
            grammar=grammar,
            reasoning=reasoning,
            parser=self._checked(DiscardOutput if given.is_prefill_only else parser, answer, given.begun),
            changes=prompt.changes + given.changes + answer.changes,
            pins=find_pins(given.breakpoints, given.messages, prompt, self.tokenizer) + whole,
            can_call=calling.is_possible,
            keep_special=(calling.is_possible and self._format.keep_special)
            or (self.reasoning is not None and self.reasoning.is_special),
        )

    def _prepare_texts(self, given: TextInput, scope: str) -> Prepared:
        prompts = [
            self.prompts.text(text, scope=scope) if isinstance(text, str) else self.prompts.tokens(text)
            for text in given.texts
        ]
        if not all(prompt.token_ids for prompt in prompts):
            raise RequestError("a prompt is empty", param="prompt")
        answer = self._constrain(prompts, given.structures, Calling(), given.max_tokens)
        parser = self._checked(PlainText, answer)
        return Prepared(prompts=prompts, grammar=answer.grammar, parser=parser, changes=answer.changes)

    def _constrain(
        self, prompts: Sequence[Prompt], structures: Sequence[Structure], calling: Calling, max_tokens: int = 1
    ) -> AnswerGrammar:
        if max(len(prompt.token_ids) for prompt in prompts) + max_tokens > self.max_context:
            return AnswerGrammar()
        return GrammarBuilder(parse_constraint(structures), calling, self._relaxer, self.prompts.order).build()

    def _limit_reasoning(self, prompt: Prompt, given: ChatInput) -> Reasoning | None:
        if self.reasoning is None:
            return None
        max_tokens = given.reasoning.limit(self.prompts.source, self._max_reasoning)
        return self.reasoning.limit(prompt.text, self.tokenizer, max_tokens)

    def _checked(
        self, make: Callable[[], CallParser], answer: AnswerGrammar, begun: str = ""
    ) -> Callable[[OnChange], CallParser]:
        if not answer.checks:
            return lambda _: make()
        return lambda on_change: CheckedParser(make(), answer.checks, self._find_violation, on_change, begun)


def find_pins(
    breakpoints: Sequence[CacheBreakpoint], messages: Sequence[Message], prompt: Prompt, tokenizer: Tokenizer
) -> tuple[Pin, ...]:
    """Which tokens the breakpoints stand for; one whose place the prompt does not tell is left out."""
    ends = [(_find_end(each, messages, prompt, tokenizer), each.ttl_s) for each in breakpoints[-MAX_BREAKPOINTS:]]
    return tuple(Pin(end, ttl_s) for end, ttl_s in ends if end)


def _find_end(mark: CacheBreakpoint, messages: Sequence[Message], prompt: Prompt, tokenizer: Tokenizer) -> int:
    tools = [span for span in prompt.spans if span.kind == "tool"]
    if mark.num_chars is None:
        return max((span.end for span in tools if span.index in range(mark.index + 1)), default=0)
    own = [span for span in prompt.spans if span.kind in _OF_MESSAGES and span.index == mark.index]
    if not own:
        return 0
    num_after = len(messages[mark.index].content) - mark.num_chars
    end = _find_token(own[0], num_after, prompt, tokenizer) if num_after else own[-1].end
    return max(end, *(span.end for span in tools)) if tools else end


def _find_token(span: PromptSpan, num_after: int, prompt: Prompt, tokenizer: Tokenizer) -> int:
    """Where the last characters of a span begin. Counted from its end: what is moved out of a prompt is at its top."""
    before = prompt.text[span.place.begin : max(span.place.end - num_after, span.place.begin)].encode()
    sizes = (len(tokenizer.token_bytes(token_id)) for token_id in prompt.token_ids[span.begin : span.end])
    return span.begin + bisect_right([*accumulate(sizes)], len(before))
