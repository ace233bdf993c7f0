"""What a replica is sent for a request: the client's own bytes wherever it speaks that API and calls the model so."""

from collections.abc import Mapping

import msgspec

from hotloop.router.asked import Asked
from hotloop.router.replicas.replica import Replica
from hotloop.router.translate import Translation, translate
from hotloop.router.upstream.wire import Ask


def compose(
    asked: Asked, replica: Replica, headers: Mapping[bytes, bytes], target: str
) -> tuple[Ask, Translation | None]:
    """Raises RequestError where the request cannot be said in any API the replica speaks."""
    model = replica.models.get(asked.model, asked.model)
    if asked.api in replica.apis:
        body = asked.raw if model == asked.model else asked.rename(model)
        return Ask("POST", target, replica.headers(headers), body), None
    translation = translate(
        asked.api, replica.apis, {**asked.read_body(), "model": model}, is_strict=replica.kind.is_strict
    )
    assert translation, "placement offers only replicas that can be spoken to"
    path, said = translation.request()
    return Ask("POST", path, replica.headers(headers), msgspec.json.encode(said)), translation
