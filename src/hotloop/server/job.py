"""From a request of any API to a job: what the engine is asked to do, and who hears when it is done.

    ApiRequest, Options ─> ChatInput ─chat.prepare─> Prepared, SamplingParams ─> Job ─stream.submit─> engine

Tokenizing a long history and compiling a schema take a while, so jobs are made off the event loop.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hotloop.chat.chat import Chat, Prepared
from hotloop.chat.prompt import Prompt
from hotloop.chat.stream import CallParser, NamedCalls
from hotloop.core.errors import PromptTooLong, RequestError
from hotloop.core.request import SamplingParams
from hotloop.server.chat_input import parse_chat_input
from hotloop.server.explain.inquiry import CacheExplanation, Explainer
from hotloop.server.holds import RetentionHints
from hotloop.server.options import Options, check_logprobs, max_tokens_with, parse_begun, parse_sampling
from hotloop.server.tenants import Caller
from hotloop.wire.request import ApiRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the engine is asked to do. Each prompt is answered `num_choices` times."""

    endpoint: str
    prompt_param: str
    """The field that is at fault if a prompt is too long."""
    prepared: Prepared
    sampling: SamplingParams
    inquiry: CacheExplanation
    caller: Caller
    has_results: bool = False
    num_choices: int = 1
    is_stream: bool = False
    has_usage: bool = False
    is_prefill_only: bool = False
    """Whether the prompt is only prefilled, and its one token is discarded."""
    begun_ids: Sequence[int] = ()
    """Tokens that the answer begins with, chosen elsewhere."""
    call_ids: Sequence[str] = ()
    """What its first calls are called."""

    def make_parser(self) -> CallParser:
        parser = self.prepared.parser(self.inquiry.tell)
        return NamedCalls(parser, self.call_ids) if self.call_ids else parser


class Jobs:
    """Makes the jobs of one server."""

    def __init__(
        self, chat: Chat, explainer: Explainer, retention_hints: RetentionHints, *, strict_tools: bool
    ) -> None:
        self._chat = chat
        self._explainer = explainer
        self._retention_hints = retention_hints
        self._strict_tools = strict_tools

    def make(
        self,
        request: ApiRequest,
        options: Options,
        caller: Caller,
        *,
        logprobs: int | None = None,
        is_prefill_only: bool = False,
    ) -> Job:
        """A job for a chat of any API."""
        given = parse_chat_input(request, options, is_strict=self._strict_tools, is_prefill_only=is_prefill_only)
        with self._too_long_errors(request):
            prepared = self._chat.prepare(given, scope=caller.scope)
        [prompt] = prepared.prompts
        max_tokens, changes = self._limit_tokens(request, len(prompt.token_ids), logprobs, options.num_choices)
        sampling = SamplingParams(max_tokens=1, ignore_eos=True)
        if not is_prefill_only:
            vocab_size = self._chat.tokenizer.vocab_size
            sampling = parse_sampling(request, options, vocab_size, max_tokens=max_tokens, logprobs=logprobs)
            sampling = replace(sampling, keep_special=prepared.keep_special)
        inquiry = self._explainer.inquire(prepared.prompts, caller, options.compared_with)
        if sampling.max_tokens == 1:
            inquiry.compare()  # there is no time for it once the answer has begun
        inquiry.tell(*prepared.changes, *changes)
        room = self._chat.max_context - len(prompt.token_ids) - 1
        begun_ids = parse_begun(options, self._chat.tokenizer.vocab_size, min(room, sampling.max_tokens or room))
        messages = () if is_prefill_only else given.messages  # what is only prefilled has neither come back nor ended
        return Job(
            endpoint=request.api,
            prompt_param=request.turns_param,
            prepared=prepared,
            sampling=sampling,
            inquiry=inquiry,
            caller=caller,
            has_results=self._retention_hints.begin(messages),
            num_choices=options.num_choices,
            is_stream=request.is_stream,
            has_usage=request.has_usage,
            is_prefill_only=is_prefill_only,
            begun_ids=begun_ids,
            call_ids=options.resume.call_ids if options.resume else (),
        )

    def make_prompt(
        self, request: ApiRequest, options: Options, scope: str, *, is_prefill_only: bool = False
    ) -> Prompt:
        """The prompt alone, for those who only ask how long it is."""
        given = parse_chat_input(request, options, is_strict=self._strict_tools, is_prefill_only=is_prefill_only)
        with self._too_long_errors(request):
            return self._chat.prompts.chat(given, scope=scope)

    @contextmanager
    def _too_long_errors(self, request: ApiRequest) -> Iterator[None]:
        try:
            yield
        except PromptTooLong as error:
            if request.api == "messages":
                raise self._too_long(error.num_prompt) from None
            error.param = request.turns_param
            raise

    def _limit_tokens(
        self, request: ApiRequest, num_prompt: int, logprobs: int | None, num_choices: int
    ) -> tuple[int | None, tuple[str, ...]]:
        """Most tokens of an answer, and what is told of it. Clients ask for more than any context has: they get what is
        left of it. An answer of open length ends where it holds as many log probabilities as one may."""
        max_tokens, room = request.max_tokens, self._chat.max_context - num_prompt
        changes: tuple[str, ...] = ()
        if room < 1 and request.api == "messages":
            raise self._too_long(num_prompt)
        if max_tokens is not None and 1 <= room < max_tokens:
            changes = (f"max_tokens: {max_tokens} became {room}, all that the context has room for",)
            max_tokens = room
        if max_tokens is None and logprobs is not None and (most := max_tokens_with(logprobs, num_choices)) < room:
            changes = (f"max_tokens: became {most}, since there are log probabilities for each token",)
            max_tokens = most
        check_logprobs(logprobs, num_choices, max_tokens)
        return max_tokens, changes

    def _too_long(self, num_prompt: int) -> RequestError:
        """Anthropic's clients know the words of this refusal: they make the conversation shorter and try again."""
        limit = self._chat.max_context - 1
        return RequestError(f"prompt is too long: {num_prompt} tokens > {limit} maximum", param="messages")
