"""`/v1/completions`: the body it takes, the prompts that are in it, and the words it answers with."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta

from hotloop.chat.prompt import Prompt, Prompts
from hotloop.core.errors import RequestError
from hotloop.core.request import SamplingParams, TokenLogprob
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.delivery import Piece
from hotloop.server.openai.render import Json, all_tops, clamp
from hotloop.server.openai.wire import MAX_TOP_LOGPROBS, GenerateBody, TokenId, parse_sampling

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 512
"""Prompts times n: as many as may wait by default."""

PromptBody = str | list[str | TokenId | list[TokenId]]


class CompletionBody(GenerateBody, kw_only=True):
    prompt: PromptBody
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    suffix: str | None = None
    best_of: int | None = None


def parse_prompts(body: CompletionBody, prompts: Prompts, scope: str) -> list[Prompt]:
    """One prompt or several: text, texts, tokens, or lists of tokens."""
    _check_supported(body)
    given = body.prompt
    several = given if isinstance(given, list) and not all(isinstance(part, int) for part in given) else [given]
    if len(several) * body.num_choices > MAX_CHOICES:
        raise RequestError(f"prompts times n may be at most {MAX_CHOICES}", param="prompt")
    parsed = [_parse_prompt(one, prompts, scope) for one in several]
    if not all(prompt.token_ids for prompt in parsed):
        raise RequestError("a prompt is empty", param="prompt")
    return parsed


def parse_completion_sampling(body: CompletionBody, vocab_size: int) -> SamplingParams:
    max_tokens = body.max_tokens or DEFAULT_MAX_TOKENS
    return parse_sampling(body, max_tokens=max_tokens, logprobs=body.logprobs, vocab_size=vocab_size)


def _check_supported(body: CompletionBody) -> None:
    if body.suffix:
        raise RequestError("suffix is not supported", param="suffix")
    if body.best_of not in (None, body.num_choices):
        raise RequestError("best_of is not supported: ask for n", param="best_of")
    if body.echo and body.logprobs is not None:
        raise RequestError("echo is not supported together with logprobs", param="echo")


def _parse_prompt(given: PromptBody | int | list[int], prompts: Prompts, scope: str) -> Prompt:
    if isinstance(given, str):
        return prompts.text(given, scope=scope)
    if isinstance(given, int):
        raise RequestError("prompt: text and tokens cannot be mixed", param="prompt")
    return prompts.tokens([part for part in given if isinstance(part, int)])


class CompletionWording:
    """A choice is text that goes on where its prompt ended."""

    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, echoes: Sequence[str], num_choices: int) -> None:
        self._tokenizer = tokenizer
        self._echoes = [echo for echo in echoes for _ in range(num_choices)]
        self._offsets = [0] * len(self._echoes)

    def whole(self, index: int, piece: Piece) -> Json:
        return self._choice(index, self._echoes[index] + piece.text, piece)

    def opening(self, index: int) -> Json | None:
        echo = self._echoes[index]
        return {"index": index, "text": echo, "logprobs": None, "finish_reason": None} if echo else None

    def deltas(self, index: int, piece: Piece) -> Iterable[Json]:
        if piece.text or piece.logprobs:
            yield {**self._choice(index, piece.text, piece), "finish_reason": None, "stop_reason": None}

    def closing(self, index: int, piece: Piece) -> Json:
        return {
            "index": index,
            "text": "",
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_match,
        }

    def _choice(self, index: int, text: str, piece: Piece) -> Json:
        return {
            "index": index,
            "text": text,
            "logprobs": self._render_logprobs(index, piece.logprobs) if piece.logprobs else None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_match,
        }

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
        for token_id, value in all_tops(logprob):
            tops.setdefault(self._tokenizer.token_text(token_id), clamp(value))
        return tops
