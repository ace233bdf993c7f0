"""What a prompt is in tokens, asked of a replica that can tell; `None` if none does."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from hotloop.router.replicas.replica import Replica
from hotloop.router.upstream.wire import UpstreamFailed, UpstreamRequest, fetch

MAX_BYTES = 16 << 20


class _Tokens(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]


async def tokenize(replicas: Iterable[Replica], question: Mapping[str, Any]) -> list[int] | None:
    """By the first replica that publishes its state, is up and has the model: all that have it tokenize alike."""
    model = question.get("model")
    model = model if isinstance(model, str) else ""
    for replica in replicas:
        path = replica.kind.tokenize_path
        if path and replica.config.kv_events and replica.state == "up" and replica.serves(model):
            body = msgspec.json.encode({**question, "model": replica.models.get(model, model)})
            headers = replica.headers({b"content-type": b"application/json"})
            try:
                request = UpstreamRequest("POST", path, headers, body)
                status, _, page = await fetch(replica.upstream, request, MAX_BYTES)
                return msgspec.json.decode(page, type=_Tokens).tokens if status == 200 else None
            except (UpstreamFailed, msgspec.MsgspecError):
                return None
    return None
