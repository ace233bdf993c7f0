"""A request as one replica is sent it: the client's own bytes where they will do, else changed or translated.

Fields change where replicas differ: what they call the model, what `priority` means to them, whether a stream ends with
its usage, which the router counts, and what keeps the prefixes of tenants apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from hotloop.router.kinds import WITHOUT_STAND_IN, ReplicaKind
from hotloop.router.replicas.replica import Replica
from hotloop.router.request import RoutedRequest, change
from hotloop.router.translate import Translation, can_translate, translate
from hotloop.router.upstream.wire import UpstreamRequest
from hotloop.wire.errors import ThreadUnsupported
from hotloop.wire.hints import TOKENS_HEADER
from hotloop.wire.kv import SOURCE_HEADER
from hotloop.wire.responses.items import ItemStore


@dataclass(frozen=True, slots=True)
class Composed:
    """A request as one replica is sent it."""

    sent: UpstreamRequest
    translation: Translation | None = None
    has_other_way: bool = False
    """Whether, if the replica turns out not to have the path, it can be translated or another replica asked."""
    hides_usage: bool = False
    has_class: bool = False
    """Whether its class was put as a number, which the replica may refuse."""


def compose(
    request: RoutedRequest,
    replica: Replica,
    headers: Mapping[bytes, bytes],
    items: ItemStore,
    *,
    tells_tokens: bool = False,
    kv_source: str = "",
) -> Composed:
    """The client's own bytes if the replica speaks that API, but for fields that have to be others there. Raises
    RequestError if the request cannot be said in any API the replica speaks, or would be misunderstood. `items` are
    those of translated answers, which no replica knows. `tells_tokens`: a replica that can is to tell them.
    `kv_source` is where it may have the prompt's KV from."""
    spoken, sent_headers = replica.speaks(request), replica.headers(headers, request.tenant)
    if tells_tokens and replica.kind.resumes == "tokens":
        sent_headers.append((TOKENS_HEADER.encode(), b"1"))
    if kv_source and not request.is_question:
        sent_headers.append((SOURCE_HEADER.encode(), kv_source.encode()))
    is_spoken = request.api in spoken
    options = usage_options(request) if replica.kind.has_stream_usage or not is_spoken else None
    changes: dict[str, Any] = {"stream_options": options} if options else {}
    model = replica.models.get(request.model, request.model)
    if model != request.model:
        changes["model"] = model
    class_number = number_class(request, replica)
    if class_number is not None or not takes_priority(replica.kind, request.given_priority):
        changes["priority"] = class_number
    if replica.kind.tags_sessions and request.session:
        changes["session_id"] = request.session
    own = own_fields(request, replica.kind)
    salt = {"cache_salt": request.cache_salt} if request.scope and replica.kind.salted else {}
    if request.has_thread and request.api == "messages" and not (request.is_question or replica.kind.reads_threads):
        raise ThreadUnsupported
    if is_spoken:
        sent = UpstreamRequest(
            "POST",
            replica.target(request.target, model, is_stream=request.is_stream),
            sent_headers,
            request.replace(changes | salt | own),
        )
        is_near = request.can_be_translated and can_translate(request.api, spoken - {request.api})
        has_other_way = is_near or request.api in WITHOUT_STAND_IN
        return Composed(sent, None, has_other_way, bool(options), has_class=class_number is not None)
    given = items.resolve(change(request.read_body(), changes), request.tenant.may_see)
    translation = translate(request.api, spoken, given, is_strict=replica.kind.is_strict)
    if given.get("store") is not False:
        translation.on_items = partial(items.keep, owner=request.tenant.id)
    path, translated = translation.request()
    engine = {name: changes[name] for name in ("priority", "session_id") if changes.get(name) is not None}
    sent = UpstreamRequest(
        "POST",
        replica.target(path, model, is_stream=request.is_stream),
        sent_headers,
        msgspec.json.encode(change(translated, salt | engine | own)),
    )
    return Composed(sent, translation, hides_usage=bool(options), has_class=class_number is not None)


def own_fields(request: RoutedRequest, kind: ReplicaKind) -> dict[str, Any]:
    """What a kind wants in each body, and None for what it has in the path instead."""
    version = {"anthropic_version": kind.body_version} if kind.body_version else {}
    return {**version, "model": None} if kind.verbs[0] and not request.is_question else version


def usage_options(request: RoutedRequest) -> dict[str, Any] | None:
    """`stream_options` that ask for usage, for a stream that would have none and whose client did not."""
    given = request.stream_options or {}
    if not request.is_stream or request.api not in ("chat", "completions") or not isinstance(given, dict):
        return None
    if given.get("include_usage"):
        return None
    # vLLM's usage in every chunk comes only with usage at the end, so this client would not have got it.
    return {**change(given, {"continuous_usage_stats": None}), "include_usage": True}


def number_class(request: RoutedRequest, replica: Replica) -> int | None:
    """A class as engines have it that schedule by number. A user's turn has the number of those who say none."""
    is_numbered = replica.kind.priority is int and type(request.given_priority) is not int
    return replica.class_step * request.priority or None if is_numbered else None


def takes_priority(kind: ReplicaKind, given: Any) -> bool:
    """hotloop knows classes, and says itself what is wrong with another; other engines know numbers of their own."""
    return given is None or kind.priority is str or (kind.priority is int and type(given) is int)
