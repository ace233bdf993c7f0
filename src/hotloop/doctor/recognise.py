"""What a deployment is, by its address, headers, list of models or metrics, or by pages that only one kind has."""

from dataclasses import dataclass

import msgspec

from hotloop.doctor.wire.deployment import Deployment
from hotloop.router.kinds import METRICS_PATHS, Kind, kind_by_metrics, kind_by_url, read_load

_ROUTER = Kind(name="hotloop_router", running="hotloop_router_running", waiting="hotloop_router_waiting")
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama_cpp", "library": "ollama", "hotloop": "hotloop"}
"""What the list of models says of itself. TGI, gateways and hosted APIs name others there."""


class _SGLangInfo(msgspec.Struct):
    """It tells all its settings; this one is nobody else's."""

    disable_radix_cache: bool


class _TgiInfo(msgspec.Struct):
    model_id: str
    max_total_tokens: int


@dataclass(frozen=True, slots=True)
class Identity:
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
