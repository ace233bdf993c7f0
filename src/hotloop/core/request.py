"""A request, from the moment it is submitted to its one terminal event.

`Request` is the only long-lived object in the engine: the scheduler moves it, the sampler reads it, nothing copies it.
There is no prefill phase and no decode phase, only `num_computed` catching up with the tokens:

    token_ids     [ prompt ........................ | output ...... ]-- num_pending --]  chosen, their values unknown
    num_computed  [ launched ............................. |  still to compute        ]
    num_settled   [ KV is in blocks ......... | in flight  |
    num_cached    [ found in the tree .. |
"""

import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import count
from typing import NamedTuple

from hotloop.core.errors import HotloopError, RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.reasoning import Reasoning
from hotloop.core.retention import Eviction

MAX_LOGIT_BIAS = 1024  # each costs time at every token


class Priority(IntEnum):
    """Who goes first. Lower is more urgent. What each class may wait, and its share, are settings (`ClassLimits`)."""

    INTERACTIVE = 0
    WORKFLOW = 1
    BACKGROUND = 2


class FinishReason(StrEnum):
    """Why a request ended. `ABORT` and `ERROR` never reach an OpenAI client as finish reasons."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Wait(StrEnum):
    """What a request waits for before it is let in."""

    TURN = "turn"
    """Steps that were full, and more urgent requests."""
    BATCH = "batch"
    """A place among those who run: there are `max_running`."""
    KV_BLOCKS = "kv_blocks"
    """KV blocks that others use."""
    SESSIONS = "sessions"
    """Sessions under way, which will come back to what the cache has of theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop. The defaults are OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this share as likely as the likeliest."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    """None: as many as the context holds."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    """Whether a matched stop string stays in the text."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: no logprobs; k: the sampled token's, and the k likeliest beside it."""
    keep_special: bool = False
    """Whether special tokens show in the text, as formats that mark a tool call with one need it; never the end's."""
    shortcuts: bool = True
    """Whether forced tokens and drafts may save steps. The tokens are the same either way."""

    def __post_init__(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            reason = f"logit_bias has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS} are taken"
            raise RequestError(reason, param="logit_bias")
        checks = (
            ("temperature", 0 <= self.temperature <= 100),
            ("top_p", 0 < self.top_p <= 1),
            ("top_k", self.top_k >= 0),
            ("min_p", 0 <= self.min_p <= 1),
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100),
            ("presence_penalty", -2 <= self.presence_penalty <= 2),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2),
            ("logit_bias", all(-100 <= bias <= 100 for bias in self.logit_bias.values())),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1),
            ("min_tokens", self.min_tokens >= 0 and self.min_tokens <= (self.max_tokens or self.min_tokens)),
            ("stop", all(self.stop)),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20),
        )
        for name, is_valid in checks:
            if not is_valid:
                raise RequestError(f"{name} is out of range: {getattr(self, name)!r}", param=name)

    @property
    def is_greedy(self) -> bool:
        """Below this a second token has no chance, and dividing by the temperature would overflow."""
        return self.temperature < 1e-5

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log probability before temperature, and the likeliest tokens beside it, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Usage(NamedTuple):
    """What one request cost, in tokens. Each token of the output was sampled, forced, or sampled and as drafted.

    One is made with every event, and a tuple takes a fifth of what a frozen dataclass does.
    """

    num_prompt: int
    num_cached: int
    num_output: int
    num_forced: int = 0
    """Output tokens that the grammar left no choice about, so that none was sampled."""
    num_drafted: int = 0
    """Tokens that were drafted and computed ahead."""
    num_accepted: int = 0
    """Those of them that turned out right."""
    num_steps: int = 0
    """Steps of the engine that gave this request at least one token."""
    num_restored: int = 0
    """Those of the cached tokens whose KV was read from disk, or from another server, for this request."""
    num_from_host: int = 0
    """Those whose KV was copied back from host memory for it."""
    num_reasoning: int = 0
    """Output tokens that are reasoning, with its marks."""
    turn_wait_s: float = 0.0
    batch_wait_s: float = 0.0
    room_wait_s: float = 0.0
    sessions_wait_s: float = 0.0
    """How long it waited for each `Wait`."""

    @classmethod
    def total(cls, *usages: "Usage") -> "Usage":
        return cls._make(map(sum, zip(*usages, strict=True)))

    @property
    def num_sampled(self) -> int:
        return self.num_output - self.num_forced

    @property
    def waits_s(self) -> dict[Wait, float]:
        times_s = (self.turn_wait_s, self.batch_wait_s, self.room_wait_s, self.sessions_wait_s)
        return {wait: time_s for wait, time_s in zip(Wait, times_s, strict=True) if time_s}


UNCOUNTED = Usage(0, 0, 0)
"""In the event of one more sampled token, for a listener that counts and detokenises by itself."""


class TokenEvent(NamedTuple):
    """What one step gave one request. The last event of a request, and only that one, has a finish reason."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_match: str | int | None = None
    """The stop string or stop token id that ended the request, if one of the caller's did."""
    error: HotloopError | None = None


@dataclass(frozen=True, slots=True)
class KvSource:
    """A server that probably has the KV of a prompt."""

    url: str
    key: str = field(default="", repr=False)
    """The API key that it is asked with."""


@dataclass(slots=True, eq=False)
class Request:
    """See the module's picture. Made by the caller; everything below `kv_source` belongs to the engine."""

    id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    priority: Priority = Priority.INTERACTIVE
    session_id: str = ""
    grammar: Grammar | None = None
    salt: str = ""
    """Prefixes are shared with requests of the same salt only."""
    reasoning: Reasoning | None = None
    """None: nothing in its answer counts as reasoning."""
    resume_at: Sequence[int] = ()
    """Where in the prompt later ones are likely to go on from, beside its end."""
    parent_id: str = ""
    """The session that its own works for."""
    begun_ids: Sequence[int] = ()
    """Tokens its answer begins with, chosen elsewhere: they are told with its first event, and go on from there."""
    kv_source: KvSource | None = None
    """Where the KV of its prompt is asked for, as far as it is not known here."""

    number: int = field(init=False, default_factory=count().__next__)
    """Its own in this process, as its id need not be once it has ended."""
    token_ids: "array[int]" = field(init=False)
    num_computed: int = 0
    num_settled: int = 0
    num_pending: int = 0
    """Tokens that a step in flight is choosing."""
    pending_row: int = 0
    """Which wanted row of that step chooses it."""
    is_serial: bool = False
    """Whether its next token can only be computed once the value of the last is known."""
    has_draft: bool = False
    """Whether it is worth knowing its tokens before the next step, since what follows them can be drafted."""
    num_cached: int = 0
    num_restored: int = 0
    num_from_host: int = 0
    eviction: Eviction | None = None
    """What became of the first block that was not cached when it was let in, as far as the tree remembers."""
    num_computed_at_end: int = 0
    """How many of its tokens were computed when it ended: the last of an answer never is."""
    block_ids: "array[int]" = field(default_factory=lambda: array("i"))
    num_preemptions: int = 0
    num_forced: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    num_reasoning: int = 0
    session: str = ""
    """Its session: by name, or else by the prompts it goes on from."""
    root: str = ""
    """The session that all this is done for, by name; its own if it works for no other."""
    has_held_prefix: bool = False
    """Whether its prefix was being kept for it when it came (back)."""
    is_loading: bool = False
    """Whether it waits for KV from disk or host memory; until then it is not scheduled."""
    retry_at: float = 0.0
    """When it is next seen whether its session may begin, if it was not to."""
    waits_s: dict[Wait, float] = field(default_factory=lambda: dict.fromkeys(Wait, 0.0))
    waits_for: Wait = Wait.TURN
    waits_from: float = field(init=False)
    """Since when it waits for that."""
    rank: int = 0
    """The class it counts as: its priority, or a more urgent one if it had to wait long."""
    turn_wait_s: float | None = None
    """How long it was until it was first let in, or first could not be for lack of room."""
    seed: int = 0
    max_tokens: int = 1 << 31
    finish_reason: FinishReason | None = None
    arrived_at: float = field(default_factory=time.monotonic)
    waiting_since: float = field(init=False)
    first_scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None

    def __post_init__(self) -> None:
        self.waiting_since = self.waits_from = self.arrived_at
        try:
            self.token_ids = array("i", self.prompt_ids)
        except OverflowError:
            raise RequestError("the prompt has a token id outside the vocabulary", param="prompt") from None

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def output_ids(self) -> "array[int]":
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def num_uncomputed(self) -> int:
        """Tokens that no step computes yet."""
        return len(self.token_ids) + self.num_pending - self.num_computed

    @property
    def is_about_to_end(self) -> bool:
        """Whether the tokens it is waiting for are the last it may have."""
        return self.num_output + self.num_pending >= self.max_tokens

    @property
    def is_guided(self) -> bool:
        """Whether something says which tokens may come next: a grammar, or an end of its reasoning."""
        reasoning = self.reasoning
        return self.grammar is not None or (reasoning is not None and reasoning.is_limited)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def wait_for(self, wait: Wait, now: float) -> None:
        """It waits for that from now on, and has waited for something until now."""
        self.waits_s[self.waits_for] += max(0.0, now - self.waits_from)
        self.waits_for, self.waits_from = wait, now

    @property
    def usage(self) -> Usage:
        """Made for every token, so nothing is looked up that need not be: `waits_s` is in the order of `Wait`."""
        num_prompt, num_cached = len(self.prompt_ids), self.num_cached
        num_restored = min(self.num_restored, num_cached) if self.num_restored else 0
        counts = (
            num_prompt,
            num_cached,
            len(self.token_ids) - num_prompt,
            self.num_forced,
            self.num_drafted,
            self.num_accepted,
            self.num_steps,
            num_restored,
            min(self.num_from_host, num_cached - num_restored) if self.num_from_host else 0,
            self.num_reasoning,
            *self.waits_s.values(),
        )
        return tuple.__new__(Usage, counts)
