"""Answers with the tier that was chosen, judges, and goes up a tier while the answer will not do.

Only a whole answer can be judged, so all but the largest tier are asked for one; a client that wanted a stream gets it
as one in the end (`render_stream`). The largest need not be judged: it is left to the caller to ask, who can stream it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.router.tiers.config import CascadeConfig, Tier, TiersConfig
from hotloop.router.tiers.judge import Verdict, judge
from hotloop.router.tiers.tiers import AskModel, Reply, TierChoice

_OF_STREAMS = ("stream", "stream_options")
_NUM_TOP = 2
"""The likeliest token and the next: whether one was imposed, and by how much it led."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a tier said, and what was made of it."""

    tier: Tier
    reply: Reply
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Cascaded:
    """The choice in the end. Without an answer it is still to be asked, as any request is."""

    choice: TierChoice
    answer: Mapping[str, Any] | None
    attempts: tuple[Attempt, ...] = ()
    """All that was asked, the answer's own last."""


async def cascade(
    tiers: TiersConfig, config: CascadeConfig, choice: TierChoice, request: Mapping[str, Any], ask: AskModel
) -> Cascaded:
    """`request` is a chat request as the client sent it."""
    attempts: list[Attempt] = []
    tier = tiers.tier(choice.tier)
    while above := tiers.above(tier.name):
        reply = await ask(tier, judged_body(request, tier.model, config))
        verdict = judge(reply.answer, request, config)
        attempts.append(Attempt(tier, reply, verdict))
        if verdict.is_good and reply.answer is not None:
            return Cascaded(choice, dressed(reply.answer, request), tuple(attempts))
        tier, choice = above, TierChoice(above.name, above.model, f"{tier.name}: {verdict.reason}")
    return Cascaded(choice, None, tuple(attempts))


def can_cascade(request: Mapping[str, Any]) -> bool:
    """Several choices are not judged: it is the client who chooses among them."""
    return request.get("n") in (None, 1)


def judged_body(request: Mapping[str, Any], model: str, config: CascadeConfig) -> dict[str, Any]:
    """The request for a whole answer that can be judged. Probabilities only if they matter: they cost shortcuts."""
    body = {key: value for key, value in request.items() if key not in _OF_STREAMS}
    body["model"] = model
    if config.minds_confidence(request):
        body["logprobs"] = True
        body["top_logprobs"] = max(_NUM_TOP, request.get("top_logprobs") or 0)
    return body


def dressed(answer: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as the client asked for it: without the probabilities that only the judge wanted."""
    if request.get("logprobs"):
        return dict(answer)
    choices = [{**choice, "logprobs": None} if "logprobs" in choice else choice for choice in answer["choices"]]
    return {**answer, "choices": choices}
