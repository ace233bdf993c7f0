"""`/v1/completions`: the fields of its own, its prompts, and how its answers are rendered."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hotloop.chat.chat import TextInput
from hotloop.core.errors import RequestError
from hotloop.core.request import TokenLogprob
from hotloop.core.structs import compiled
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.chat_input import find_structures
from hotloop.server.delivery import Piece
from hotloop.server.job import Job
from hotloop.server.openai.render import clamp, generate
from hotloop.server.options import (
    Options,
    TokenId,
    TopLogprobs,
    check_logprobs,
    parse_begun,
    parse_options,
    parse_sampling,
    refuse_if,
)
from hotloop.server.service import Service
from hotloop.wire.chat.parse import parse_completion
from hotloop.wire.field import Json

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 512
"""Prompts times n: as many as may wait by default."""

PromptBody = str | list[str | TokenId | list[TokenId]]


@compiled
class CompletionOptions(Options, kw_only=True):
    prompt: PromptBody
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    suffix: str | None = None
    best_of: int | None = None


async def completions(http: HttpRequest) -> Response:
    async with Service.of(http).reading(http) as body:
        job, renderer = await asyncio.to_thread(_make_job, body, http)
    return await generate(http, job, renderer)


def _make_job(body: Json, http: HttpRequest) -> "tuple[Job, CompletionRenderer]":
    service = Service.of(http)
    request = parse_completion(body)
    options = parse_options(request, CompletionOptions)
    caller, tokenizer = service.caller(http, request, options), service.engine.tokenizer
    max_tokens = request.max_tokens or DEFAULT_MAX_TOKENS
    sampling = parse_sampling(request, options, tokenizer.vocab_size, max_tokens=max_tokens, logprobs=options.logprobs)
    texts = _parse_prompts(options)
    check_logprobs(options.logprobs, len(texts) * options.num_choices, max_tokens, "logprobs")
    structures = [*find_structures(request, options)]
    given = TextInput(texts=texts, structures=structures, max_tokens=max_tokens)
    prepared = service.chat.prepare(given, scope=caller.scope)
    inquiry = service.explainer.inquire(prepared.prompts, caller, options.compared_with)
    inquiry.tell(*prepared.changes)
    job = Job(
        endpoint="completions",
        prompt_param="prompt",
        prepared=prepared,
        num_choices=options.num_choices,
        sampling=sampling,
        inquiry=inquiry,
        caller=caller,
        is_stream=request.is_stream,
        has_usage=request.has_usage,
        begun_ids=parse_begun(options, tokenizer.vocab_size, max_tokens),
    )
    echoes = [prompt.text if options.echo else "" for prompt in prepared.prompts for _ in range(options.num_choices)]
    return job, CompletionRenderer(tokenizer, echoes)


def _parse_prompts(options: CompletionOptions) -> list[str | list[int]]:
    num_choices, has_logprobs = options.num_choices, options.logprobs is not None
    refuse_if(
        ("suffix", options.suffix, "is not supported"),
        ("best_of", options.best_of not in (None, num_choices), "is not supported: ask for n"),
        ("echo", options.echo and has_logprobs, "is not supported together with logprobs"),
    )
    given = options.prompt
    several = given if isinstance(given, list) and not all(isinstance(part, int) for part in given) else [given]
    if len(several) * num_choices > MAX_CHOICES:
        raise RequestError(f"prompts times n may be at most {MAX_CHOICES}", param="prompt")
    return [*map(_parse_prompt, several)]


def _parse_prompt(given: PromptBody | int | list[int]) -> str | list[int]:
    if isinstance(given, int):
        raise RequestError("prompt: text and tokens cannot be mixed", param="prompt")
    return given if isinstance(given, str) else [part for part in given if isinstance(part, int)]


class CompletionRenderer:
    id_prefix = "cmpl"
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, echoes: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._echoes = echoes
        self._offsets = [0] * len(echoes)

    def whole(self, index: int, piece: Piece) -> Json:
        logprobs = self._render_logprobs(index, piece.logprobs) if piece.logprobs else None
        end = {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_match}
        return _choice(index, self._echoes[index] + piece.text, logprobs, **end)

    def opening(self, index: int) -> Json | None:
        return _choice(index, self._echoes[index]) if self._echoes[index] else None

    def deltas(self, index: int, piece: Piece) -> Iterable[Json]:
        if piece.text or piece.logprobs:
            yield _choice(index, piece.text, self._render_logprobs(index, piece.logprobs) if piece.logprobs else None)

    def closing(self, index: int, piece: Piece) -> Json:
        return _choice(index, "", finish_reason=piece.finish_reason, stop_reason=piece.stop_match)

    def _render_logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> Json:
        tokens = [self._tokenizer.token_text(logprob.token_id) for logprob in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [clamp(logprob.logprob) for logprob in logprobs],
            "top_logprobs": [self._render_tops(logprob) for logprob in logprobs],
            "text_offset": offsets,
        }

    def _render_tops(self, logprob: TokenLogprob) -> dict[str, float]:
        """Keyed by text, as OpenAI has it: of two tokens with the same text the likelier one is kept."""
        tops: dict[str, float] = {}
        for token_id, value in (*logprob.top, (logprob.token_id, logprob.logprob)):
            tops.setdefault(self._tokenizer.token_text(token_id), clamp(value))
        return tops


def _choice(index: int, text: str, logprobs: Json | None = None, **end: Any) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None, "stop_reason": None, **end}
