"""What a replica is sent for a request: the client's own bytes wherever it speaks that API and calls the model so."""

from collections.abc import Mapping

import msgspec

from hotloop.router.replicas.replica import Replica
from hotloop.router.request import RoutedRequest
from hotloop.router.translate import Translation, translate
from hotloop.router.upstream.wire import UpstreamRequest


def compose(
    request: RoutedRequest, replica: Replica, headers: Mapping[bytes, bytes], target: str
) -> tuple[UpstreamRequest, Translation | None]:
    """Raises RequestError where the request cannot be said in any API the replica speaks."""
    model = replica.models.get(request.model, request.model)
    if request.api in replica.apis:
        body = request.raw if model == request.model else request.rename(model)
        return UpstreamRequest("POST", target, replica.headers(headers), body), None
    translation = translate(
        request.api, replica.apis, {**request.read_body(), "model": model}, is_strict=replica.kind.is_strict
    )
    assert translation, "placement offers only replicas that can be spoken to"
    path, said = translation.request()
    return UpstreamRequest("POST", path, replica.headers(headers), msgspec.json.encode(said)), translation
