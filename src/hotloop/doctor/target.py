"""Who is examined: a deployment, what kind it is, and what has to be known of it before anything can be measured.

It is recognised by its address, headers, list of models or metrics, or by pages that only one kind has.
"""

import secrets
from typing import NamedTuple

import msgspec

from hotloop.core.structs import compiled
from hotloop.doctor import prompts
from hotloop.doctor.deployment import Deployment, ErrorAnswer
from hotloop.doctor.facts import TimedAnswer
from hotloop.router.kinds import METRICS_PATHS, ReplicaKind, kind_by_metrics, kind_by_url, read_load

_ROUTER = ReplicaKind(name="hotloop_router", running="hotloop_router_running", waiting="hotloop_router_waiting")
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama_cpp", "library": "ollama", "hotloop": "hotloop"}
"""What the list of models says of itself. TGI, gateways and hosted APIs name others there."""
_MANY_TOKENS = 2000  # enough for the time to show
_FEW_TOKENS = 1400  # hosted APIs cache from 1,024 on, and words differ in length
_READ_S = 3.0  # that a long prompt may take
_MANY_ANSWERED, _FEW_ANSWERED = 64, 16
_ANSWER_S = 3.0  # that an answer may take
_MAX_ANSWER = 2000
_ABSENT = (404, 405)


@compiled
class _SGLangInfo(msgspec.Struct):
    """It tells all its settings; this one is nobody else's."""

    disable_radix_cache: bool


@compiled
class _TgiInfo(msgspec.Struct):
    model_id: str
    max_total_tokens: int


class Identity(NamedTuple):
    """`context`: how many tokens a request may have, where that is told."""

    kind: str
    context: int | None = None


async def recognise(deployment: Deployment) -> Identity:
    """Somebody must have answered before: gateways are known by their headers."""
    if any(name.startswith("x-litellm") for name in deployment.headers):
        return Identity("litellm")
    card = await deployment.find_card()
    page = "\n".join([await deployment.get_text(path) for path in METRICS_PATHS])
    if read_load(_ROUTER, page) is not None:
        return Identity(_ROUTER.name, card.max_model_len)
    known = kind_by_url(deployment.url) or kind_by_metrics(page)
    name = known.name if known else _OWNERS.get(card.owned_by, "")
    if name and name != "tgi":  # whose context stands on a page of its own
        return Identity(name, card.max_model_len)
    return await _recognise_by_pages(deployment, card.max_model_len)


async def _recognise_by_pages(deployment: Deployment, context: int | None) -> Identity:
    for path in ("/server_info", "/get_server_info"):
        if await deployment.get(path, _SGLangInfo):
            return Identity("sglang", context)
    if info := await deployment.get("/info", _TgiInfo):
        return Identity("tgi", info.max_total_tokens)
    return Identity("openai_compatible" if deployment.api == "chat" else "anthropic_compatible", context)


async def read_running(deployment: Deployment) -> int | None:
    """How many requests it has, by its metrics; None where they do not tell."""
    page = await deployment.get_text("/metrics")
    kinds = [kind for kind in (_ROUTER, kind_by_metrics(page)) if kind]
    return next((load for kind in kinds if (load := read_load(kind, page)) is not None), None)


class Target(NamedTuple):
    deployment: Deployment
    kind: str
    prompt_chars: int
    """Of a long prompt that leaves room for an answer, and that a slow deployment can still be asked to read."""
    answer_tokens: int
    """Of an answer that is heard out."""
    max_answer: int
    """Of one that is not."""


async def meet(deployment: Deployment) -> Target:
    """A first short request tells whether it answers at all, how long its tokens are, and how fast it is."""
    known = kind_by_url(deployment.url)
    if known and known.apis == {"messages"}:
        deployment.api = "messages"
    text = prompts.long_text(1200, make_nonce())
    answer = await _ask_first(deployment, text)
    identity = await recognise(deployment)
    num_prefilled = answer.num_prompt or len(text) // 4
    context = identity.context or 3 * _MANY_TOKENS
    num_fast = int(_READ_S * num_prefilled / answer.first_s)
    num_tokens = min(max(num_fast, _FEW_TOKENS), _MANY_TOKENS, context // 3)
    write_s = (answer.total_s - answer.first_s) / max(answer.num_tokens - 1, 1)
    num_answered = int(_ANSWER_S / write_s) if write_s else _MANY_ANSWERED
    return Target(
        deployment,
        identity.kind,
        prompt_chars=num_tokens * len(text) // num_prefilled,
        answer_tokens=min(max(num_answered, _FEW_ANSWERED), _MANY_ANSWERED),
        max_answer=min(_MAX_ANSWER, context // 2),
    )


async def _ask_first(deployment: Deployment, text: str) -> TimedAnswer:
    """Chat completions are tried first; whoever has none may have Anthropic's messages."""
    messages = [prompts.user(text)]
    try:
        return await deployment.ask(messages, max_tokens=8)
    except ErrorAnswer as error:
        if error.status not in _ABSENT or deployment.api == "messages":
            raise
        deployment.api = "messages"
        try:
            return await deployment.ask(messages, max_tokens=8)
        except ErrorAnswer as other:
            raise error if other.status in _ABSENT else other from None


def make_nonce() -> str:
    """Of a prompt, so that neither an earlier examination nor another probe has warmed anything."""
    return secrets.token_hex(4)
