"""Prompts put in a stable form before they are placed, so that any replica finds again what it has cached.

What it saves is estimated from the requests themselves: how much more of a session's prompt begins as the one before it
did than if it had been sent as it came.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from cachetools import LRUCache
from msgspec import Raw
from msgspec.json import decode, encode

from hotloop.core.errors import HotloopError, RequestError
from hotloop.http.bodies import read_aside
from hotloop.router.kinds import KINDS
from hotloop.router.placement.index import HASH_BYTES
from hotloop.router.request import BLOCK_TOKENS, RoutedRequest, change
from hotloop.router.spending.spending import Cost
from hotloop.wire.event import gather
from hotloop.wire.formats import FORMATS
from hotloop.wire.late import BETAS, LateWay
from hotloop.wire.part import Api as Format
from hotloop.wire.reader import name_call
from hotloop.wire.sse import EventReader
from hotloop.wire.stable import Stabiliser
from hotloop.wire.usage import ApiUsage

HEADER = b"x-hotloop-stabilised"
_FIELDS = ("tools", "system", "instructions", "messages", "input", "prompt_cache_key")
_MAX_SESSIONS = 20_000
_TOOL_CHANGES = (b'"tool_addition"', b'"tool_removal"')
_CALLS = (b'"tool_calls"', b'"tool_use"', b'"function_call"')


@dataclass(frozen=True, slots=True)
class Stabilised:
    request: RoutedRequest
    changes: tuple[str, ...] = ()
    num_saved: int = 0
    """Tokens of the prompt that would not have been found, by estimate."""
    money_saved: float = 0.0
    betas: tuple[str, ...] = ()
    """What `anthropic-beta` has to name for it."""

    def render(self) -> bytes:
        about = [change.partition(":")[2].strip() or change for change in self.changes]
        money = [f"money={self.money_saved:.6f}"] if self.money_saved else []
        return "; ".join((f"saved={self.num_saved}", *money, *about)).encode("ascii", "replace")[:1000]


class StablePrompts:
    """`cost` tells what an answer of a model costs. Lives on the event loop."""

    def __init__(self, cost: Cost = lambda model, usage: 0.0) -> None:
        self._cost = cost
        self.num_changes: Counter[str] = Counter()
        """Requests by what was changed in them."""
        self.num_saved = 0
        self.money_saved = 0.0
        self._stabiliser = Stabiliser()
        self._keys: LRUCache[str, tuple[bytes, bytes]] = LRUCache(_MAX_SESSIONS)
        """The keys of each session's last prompt, as it came and as it was sent."""

    async def apply(
        self, request: RoutedRequest, kinds: Collection[str], *, tells_late_tools: bool = False
    ) -> Stabilised:
        """`kinds` are those of the replicas it may go to. Raises RequestError where the body cannot be read."""
        rewrite = partial(self._rewrite, request, kinds, tells_late_tools=tells_late_tools)
        done = await read_aside(len(request.raw), rewrite)
        num_saved = self._count_saved(request, done.request)
        self.num_changes.update(change.partition(":")[0].partition("[")[0] for change in done.changes)
        self.num_saved += num_saved
        money = [self._cost(request.model, ApiUsage(num_saved, num_cached, 0)) for num_cached in (0, num_saved)]
        self.money_saved += money[0] - money[1]
        return replace(done, num_saved=num_saved, money_saved=money[0] - money[1])

    def _rewrite(self, request: RoutedRequest, kinds: Collection[str], *, tells_late_tools: bool) -> Stabilised:
        """What is to be sent, and why. On any thread."""
        api = find_format(request)
        if api is None:
            return Stabilised(request)
        given = request.read_fields()
        way = _late_way(api, given, kinds) if tells_late_tools else ""
        try:
            fields, changes = self._stabiliser.rewrite(
                api,
                {name: given[name] if name == "tools" else decode(given[name]) for name in _FIELDS if name in given},
                scope=_scope(request),
                has_calls=any(word in request.raw for word in _CALLS),
                pays_marks=any(KINDS[name].pays_marks for name in kinds),
                cache_key=_cache_key(request) if any(KINDS[name].takes_cache_key for name in kinds) else "",
                late_tools=way,
            )
            sent = request.with_body(encode(change(given, fields))) if fields else request
        except (TypeError, ValueError, RecursionError, AttributeError) as error:
            raise RequestError(f"the body cannot be read: {error}") from None
        betas = BETAS if way == "changes" and any(word in sent.raw for word in _TOOL_CHANGES) else ()
        return Stabilised(sent, changes, betas=betas)

    def may_learn(self, answer: bytes | bytearray) -> bool:
        """Whether there are calls in an answer, for somebody who stabilises prompts."""
        return bool(self._keys) and any(word in answer for word in _CALLS)

    def learn(self, request: RoutedRequest, answer: bytes, *, is_stream: bool) -> None:
        """How an answer wrote its calls; what cannot be read tells nothing."""
        api = find_format(request)
        if api is None:
            return
        reader, events = FORMATS[api].reader(name_call), EventReader()
        try:
            told = (
                [event for read in events.push(answer) for event in reader.push(read)]
                if is_stream
                else [*reader.whole(answer)]
            )
        except HotloopError:
            return
        self._stabiliser.learn(gather(told), scope=_scope(request))

    def _count_saved(self, given: RoutedRequest, sent: RoutedRequest) -> int:
        session = given.session or sent.key[:HASH_BYTES].hex()
        if not session:
            return 0
        last_given, last_sent = self._keys.get(session, (b"", b""))
        self._keys[session] = given.key, sent.key
        num_more = _num_common(last_sent, sent.key) - _num_common(last_given, given.key)
        return max(0, num_more) * BLOCK_TOKENS


def find_format(request: RoutedRequest) -> Format | None:
    api = request.api
    return None if request.is_question or (api != "chat" and api != "messages" and api != "responses") else api


def _late_way(api: Format, given: Mapping[str, Raw], kinds: Collection[str]) -> LateWay:
    """The one that all these kinds have. A call that must be made is of a tool in the list, which so stays whole."""
    ways: set[LateWay] = {KINDS[name].late_tools for name in kinds}
    choice = decode(given.get("tool_choice", b"null"))
    is_free = (choice.get("type") if isinstance(choice, dict) else choice) in (None, "auto", "none")
    way = ways.pop() if len(ways) == 1 and is_free else ""
    return "" if way == "changes" and api != "messages" else way


def _scope(request: RoutedRequest) -> str:
    return f"{request.tenant.id if request.tenant.is_apart else ''}\0{request.model}"


def _cache_key(request: RoutedRequest) -> str:
    """One for a session, and none where nobody says which that is."""
    return f"hotloop-{hashlib.sha256(request.session.encode()).hexdigest()[:24]}" if request.session else ""


def _num_common(old: bytes, new: bytes) -> int:
    """Blocks with which both begin. Each hash stands for all before it."""
    low, high = 0, min(len(old), len(new)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        at = slice((middle - 1) * HASH_BYTES, middle * HASH_BYTES)
        low, high = (middle, high) if old[at] == new[at] else (low, middle - 1)
    return low
