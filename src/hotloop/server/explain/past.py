"""The prompts that were prefilled lately, and which of them another one is most like.

Every window of tokens whose hash falls on a multiple of `_SAMPLING` is remembered with the latest prompts that have it,
so a prompt is found again though its first token differs and nobody says which conversation it belongs to. Everybody
finds only what was their own, of the same scope: where two prompts part tells, token by token, what the other one says.
Bounded in tokens; used from any thread, and adding takes no time: whoever looks next sorts in what is new.
"""

import heapq
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from hotloop.chat.compare import WINDOW, Hashes, TokenIds, count_common, hash_windows
from hotloop.server.tenants import Caller

_SAMPLING = 32
_MAX_HOLDERS = 8  # prompts remembered for one window, and for one session
_NUM_ELECTED = 8  # prompts with most windows in common that are looked at closely
_SHORT = 512  # tokens of a prompt that is compared by all of its windows: of a sample it may have none
_ENTRY_COST = 64  # what a prompt costs beside its tokens
_MAX_NEWS = 256


@dataclass(frozen=True, slots=True)
class PackedPrompt:
    """A `PastPrompt` as it is told to other processes."""

    answer_id: str
    caller: Caller
    data: bytes
    num_prompt: int
    added_at: float


@dataclass(frozen=True, slots=True, eq=False)
class PastPrompt:
    """A prompt and its answer, as far as they were computed."""

    answer_id: str
    caller: Caller
    token_ids: TokenIds
    num_prompt: int
    added_at: float = field(default_factory=time.monotonic)

    @property
    def cost(self) -> int:
        return len(self.token_ids) + _ENTRY_COST

    @property
    def packed(self) -> PackedPrompt:
        return PackedPrompt(self.answer_id, self.caller, self.token_ids.tobytes(), self.num_prompt, self.added_at)

    @classmethod
    def unpack(cls, packed: PackedPrompt) -> "PastPrompt":
        token_ids = np.frombuffer(packed.data, np.int32)
        return cls(packed.answer_id, packed.caller, token_ids, packed.num_prompt, packed.added_at)


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """The windows a prompt is known by: a share of them that depends on nothing but what is in them, and its first."""

    hashes: Hashes
    """Those it is compared by, sorted, each once; all of them if it is short."""
    keys: list[int]
    """Those it is looked up by: elsewhere for everybody."""
    is_short: bool

    @classmethod
    def of(cls, token_ids: TokenIds, caller: Caller) -> "_Windows":
        hashes = hash_windows(token_ids)
        sample = np.unique(np.concatenate([hashes[:1], hashes[hashes % np.uint64(_SAMPLING) == 0]]))
        seed, is_short = hash((caller.owner, caller.scope)), len(token_ids) <= _SHORT
        keys = [window ^ seed for window in sample.tolist()]
        return cls(np.unique(hashes) if is_short else sample, keys, is_short)

    def count_shared(self, other: "_Windows") -> int:
        if not len(self.hashes) or not len(other.hashes):
            return 0
        places = np.searchsorted(other.hashes, self.hashes).clip(max=len(other.hashes) - 1)
        num_shared = int(np.count_nonzero(other.hashes[places] == self.hashes))
        return num_shared if self.is_short and other.is_short else num_shared * _SAMPLING


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    prompt: PastPrompt
    windows: _Windows
    number: int

    @property
    def keys(self) -> Iterable[Hashable]:
        return [*self.windows.keys, *_sessions(self.prompt.caller)]


class Past:
    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._cost = 0
        self._num_added = 0
        self._entries: deque[_Entry] = deque()
        self._by_answer: dict[str, _Entry] = {}
        self._by_key: dict[Hashable, deque[_Entry]] = {}  # windows and sessions, the latest last
        self._news: deque[PastPrompt] = deque(maxlen=_MAX_NEWS)
        self._lock = threading.Lock()

    def add(self, prompt: PastPrompt) -> None:
        self._news.append(prompt)

    def find(self, answer_id: str, caller: Caller) -> PastPrompt | None:
        with self._lock:
            self._take_news()
            entry = self._by_answer.get(answer_id)
        return entry.prompt if entry and is_same(entry.prompt.caller, caller) else None

    def find_like(self, token_ids: TokenIds, caller: Caller, asked_at: float = math.inf) -> PastPrompt | None:
        """The caller's earlier prompt that this one continues, else the one most like it; of equals the latest. Those
        that were prefilled after it was asked are none of them.
        """
        windows = _Windows.of(token_ids, caller)
        with self._lock:
            self._take_news()
            entries = self._nominate(windows, caller, asked_at)
        commons = [count_common(token_ids, entry.prompt.token_ids) for entry in entries]
        most = max(commons, default=0)
        ranked = [
            (
                num_common == most == len(entry.prompt.token_ids),
                windows.count_shared(entry.windows),
                num_common,
                entry.number,
            )
            for num_common, entry in zip(commons, entries, strict=True)
        ]
        if not ranked:
            return None
        (_, num_shared, num_common, _), best = max(zip(ranked, entries, strict=True), key=lambda pair: pair[0])
        return best.prompt if num_shared or num_common >= WINDOW else None

    def check(self) -> None:
        with self._lock:
            self._take_news()
            assert self._cost == sum(entry.prompt.cost for entry in self._entries) <= self._max_tokens
            assert all(0 < len(holders) <= _MAX_HOLDERS for holders in self._by_key.values())
            assert {entry for holders in self._by_key.values() for entry in holders} <= {*self._entries}
            assert {*self._by_answer.values()} <= {*self._entries}

    def _nominate(self, windows: _Windows, caller: Caller, asked_at: float) -> list[_Entry]:
        """Who is looked at closely. A window that few have says more than one that all have."""
        votes: defaultdict[_Entry, float] = defaultdict(float)
        for key in windows.keys:
            if holders := self._by_key.get(key):
                share = 1 / len(holders)
                for entry in holders:
                    if entry.prompt.added_at <= asked_at:
                        votes[entry] += share
        elected = {*heapq.nlargest(_NUM_ELECTED, votes, key=votes.__getitem__)}
        for session in _sessions(caller):
            elected.update(self._by_key.get(session, ()))
        return [
            entry for entry in elected if is_same(entry.prompt.caller, caller) and entry.prompt.added_at <= asked_at
        ]

    def _take_news(self) -> None:
        while self._news:
            self._keep(self._news.popleft())
        while self._entries and self._cost > self._max_tokens:
            self._drop(self._entries.popleft())

    def _keep(self, prompt: PastPrompt) -> None:
        self._num_added += 1
        entry = _Entry(prompt, _Windows.of(prompt.token_ids, prompt.caller), self._num_added)
        self._entries.append(entry)
        self._by_answer[prompt.answer_id] = entry
        self._cost += prompt.cost
        for key in entry.keys:
            self._by_key.setdefault(key, deque(maxlen=_MAX_HOLDERS)).append(entry)

    def _drop(self, entry: _Entry) -> None:
        """The oldest of all, so it is the first of those who still have it."""
        self._cost -= entry.prompt.cost
        if self._by_answer.get(entry.prompt.answer_id) is entry:
            del self._by_answer[entry.prompt.answer_id]
        for key in entry.keys:
            holders = self._by_key.get(key)
            if holders and holders[0] is entry:
                holders.popleft()
                if not holders:
                    del self._by_key[key]


def is_same(one: Caller, other: Caller) -> bool:
    """Whether two requests come from one who shares what was computed with itself."""
    return (one.owner, one.scope) == (other.owner, other.scope)


def _sessions(caller: Caller) -> Iterable[Hashable]:
    """The caller's session, and one for all it asks: the latest of these may be what is looked for."""
    return {(caller.owner, caller.scope, session_id) for session_id in (caller.session_id, "")}
