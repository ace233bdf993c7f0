"""Answers with the tier that was chosen, judges, and goes up a tier while the answer will not do.

Smaller tiers are asked for whole answers, which a client that wanted a stream gets as one in the end (`render_stream`);
but free text is judged by its beginning, and told as it is written (`held`). The largest tier is not judged: it is left
to the caller to ask, who can stream it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.router.tiers.config import CascadeConfig, Tier, TiersConfig
from hotloop.router.tiers.held import may_stream
from hotloop.router.tiers.judge import judge
from hotloop.router.tiers.tiers import AskModel, Reply, TierChoice
from hotloop.wire.sse import DONE, write_data

_OF_STREAMS = ("stream", "stream_options")
_NUM_TOP = 2
"""The likeliest token and the next: whether one was imposed, and by how much it led."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a tier answered, and why that will not do; empty if it will."""

    tier: Tier
    reply: Reply
    doubt: str


@dataclass(frozen=True, slots=True)
class Cascaded:
    """The choice in the end. Without an answer it is still to be asked, as any request is."""

    choice: TierChoice
    answer: Mapping[str, Any] | None
    attempts: tuple[Attempt, ...] = ()
    """All that was asked, the answer's own last."""
    is_live: bool = False
    """Whether the answer goes on: whoever was asked has it."""


async def cascade(
    tiers: TiersConfig, config: CascadeConfig, choice: TierChoice, request: Mapping[str, Any], ask: AskModel
) -> Cascaded:
    """`request` is a chat request as the client sent it."""
    attempts: list[Attempt] = []
    tier = tiers.tier(choice.tier)
    while above := tiers.above(tier.name):
        reply = await ask(tier, judged_body(request, tier.model, config))
        if reply.is_live:
            return Cascaded(choice, None, tuple(attempts), is_live=True)
        doubt = reply.doubt or judge(reply.answer, request, config)
        attempts.append(Attempt(tier, reply, doubt))
        if not doubt and reply.answer is not None:
            return Cascaded(choice, strip_logprobs(reply.answer, request), tuple(attempts))
        tier, choice = above, TierChoice(above.name, above.model, f"{tier.name}: {doubt}")
    return Cascaded(choice, None, tuple(attempts))


def judged_body(request: Mapping[str, Any], model: str, config: CascadeConfig) -> dict[str, Any]:
    """The request for an answer that can be judged: whole, or by its beginning. Probabilities only if they matter: they
    cost shortcuts."""
    left_out = () if may_stream(request, config) else _OF_STREAMS
    body = {key: value for key, value in request.items() if key not in left_out}
    body["model"] = model
    if config.minds_confidence(request):
        body["logprobs"] = True
        body["top_logprobs"] = max(_NUM_TOP, request.get("top_logprobs") or 0)
    return body


def strip_logprobs(answer: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as the client asked for it: without the probabilities that only the judge wanted."""
    if request.get("logprobs"):
        return dict(answer)
    choices = [{**choice, "logprobs": None} if "logprobs" in choice else choice for choice in answer["choices"]]
    return {**answer, "choices": choices}


def render_stream(answer: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[bytes]:
    """Server-sent events: the role, the text, each call, why it ended, and the usage if the client wants it."""
    head = {key: value for key, value in answer.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    options = request.get("stream_options")
    has_usage = bool(options.get("include_usage")) if isinstance(options, Mapping) else False
    more = {"usage": None} if has_usage else {}
    choice = answer["choices"][0]
    ended = {key: value for key, value in choice.items() if key not in ("message", "logprobs")}
    for delta in _deltas(choice["message"]):
        logprobs = choice.get("logprobs") if delta.get("content") else None
        piece = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        yield write_data({**head, "choices": [piece], **more})
    yield write_data({**head, "choices": [{"index": 0, "delta": {}, **ended}], **more})
    if has_usage:
        yield write_data({**head, "choices": [], "usage": answer.get("usage")})
    yield DONE


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    text = message.get("content")
    rest = {key: value for key, value in message.items() if value and key not in ("content", "tool_calls")}
    yield {**rest, "content": None if text is None else ""}
    if text:
        yield {"content": text}
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": index, **call}]}
