"""What a prompt is in tokens, asked of a replica that can tell; `None` if none does."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from hotloop.router.replicas.replica import Replica
from hotloop.router.upstream.wire import UpstreamFailed, UpstreamRequest

MAX_BYTES = 16 << 20


class _Tokens(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]


async def tokenize(replicas: Iterable[Replica], question: Mapping[str, Any]) -> list[int] | None:
    """By the first replica that publishes its state, is up and has the model: all that have it cut prompts alike."""
    model = question.get("model")
    model = model if isinstance(model, str) else ""
    for replica in replicas:
        can_tell = replica.config.kv_events and replica.kind.tokenize_path and replica.state == "up"
        if can_tell and replica.serves(model):
            return await _ask(replica, replica.kind.tokenize_path or "", model, question)
    return None


async def _ask(replica: Replica, path: str, model: str, question: Mapping[str, Any]) -> list[int] | None:
    body = msgspec.json.encode({**question, "model": replica.models.get(model, model)})
    headers = replica.headers({b"content-type": b"application/json"})
    try:
        answer = await replica.upstream.send(UpstreamRequest("POST", path, headers, body))
        try:
            page = bytearray()
            async for chunk in answer.chunks():
                page += chunk
                if len(page) > MAX_BYTES:
                    return None
        finally:
            await answer.aclose()
    except UpstreamFailed:
        return None
    try:
        return msgspec.json.decode(page, type=_Tokens).tokens if answer.status == 200 else None
    except msgspec.MsgspecError:
        return None
