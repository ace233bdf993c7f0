"""Recorded traffic: how long each prompt and answer was, which blocks the prompt shares, and what came after what.

Two shapes are read, a line of JSON each: sessions of coding agents (`requests` with `hash_ids_rle`, ids local to the
session) and single requests (`timestamp` in ms, `hash_ids` of 512-token blocks). A trace can be made longer by playing
its sessions again as other people's: nothing of theirs is cached yet.
"""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.errors import ConfigError
from hotloop.core.files import read_lines
from hotloop.router.placement.index import HASH_BYTES, PrefixIndex

Runs = tuple[tuple[int, int], ...]
"""Block ids as runs (first, how many)."""

_SINGLE_BLOCK_TOKENS = 512
_MAX_BLOCKS = 1 << 20  # of a prompt
_WORLD_IDS = 1 << 32
"""How far the ids of what is played again are from those before."""
_WANTED = (
    "wanted is a JSON object a line with the lengths and block ids of prompts, not the prompts: "
    "sessions (`block_size`, `requests` with `in`, `out`, `hash_ids_rle`) or single requests "
    "(`timestamp`, `input_length`, `output_length`, `hash_ids`); see docs/routing.md#traffic-to-simulate"
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; `think_s` is how long after the answer before it, in its session, it came."""

    think_s: float
    num_tokens: int
    num_output: int
    runs: Runs
    known_tokens: int
    """How much of it one replica with room for everything would have cached already."""
    is_tool_call: bool = False
    """Whether its answer called a tool, so that the session comes back on its own."""


Session = tuple[Arrival, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    block_tokens: int
    sessions: tuple[Session, ...]
    is_shared: bool
    """Whether block ids mean the same in all sessions."""

    @property
    def num_requests(self) -> int:
        return sum(map(len, self.sessions))


def read_trace(path: Path) -> Trace:
    """Raises ConfigError where the file is none of the shapes above."""
    try:
        rows = [json.loads(line) for _, line in read_lines(path)]
        if not rows:
            raise ConfigError(f"{path} is empty")
        if "hash_ids" in rows[0]:  # nobody says which request belongs to which session: each is one of its own
            known = _Known(_SINGLE_BLOCK_TOKENS)
            rows.sort(key=lambda row: float(row["timestamp"]))
            return Trace(_SINGLE_BLOCK_TOKENS, tuple((_read_single(row, known),) for row in rows), is_shared=True)
        block_tokens = int(rows[0]["block_size"])
        sessions = (tuple(_read_session(row["requests"], _Known(block_tokens))) for row in rows)
        return Trace(block_tokens, tuple(filter(None, sessions)), is_shared=False)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path} is not traffic that can be simulated ({error!r}): {_WANTED}") from None


def key_of(runs: Runs, world: int = 0) -> bytes:
    """Hashes of a prompt's blocks: an id already stands for a block and all before it, within its world."""
    offset = world * _WORLD_IDS
    return b"".join(array("q", range(first + offset, first + offset + count)).tobytes() for first, count in runs)


def repeat(trace: Trace, num_requests: int) -> Iterator[tuple[int, Session]]:
    """Sessions until there are so many requests, each with its world; the last may be cut short."""
    num_left, lap, number = num_requests, 0, 0
    while num_left > 0 and trace.num_requests:
        for session in trace.sessions:
            yield lap if trace.is_shared else number, session[:num_left]
            number += 1
            num_left -= len(session)
            if num_left <= 0:
                return
        lap += 1


class _Known:
    """One replica with room for everything. Of a session's last prompt it has all, as the placement takes it to, though
    keys end with the last whole block."""

    def __init__(self, block_tokens: int) -> None:
        self._last_blocks, self._last_tokens = 0, 0
        self._block_tokens = block_tokens
        self._index = PrefixIndex()
        self._index.add_replica("", _WORLD_IDS)

    def add(self, runs: Runs, num_tokens: int, *, goes_on: bool = False) -> int:
        """How much of a prompt was known; all of it is now. `goes_on`: it is of the same session as the last."""
        key = key_of(runs)
        num_blocks = self._index.match(key).num_blocks
        num_known = num_blocks * self._block_tokens
        if goes_on and num_blocks and num_blocks >= self._last_blocks:
            num_known = max(num_known, self._last_tokens)
        self._index.insert("", key)
        self._last_blocks, self._last_tokens = len(key) // HASH_BYTES, num_tokens
        return min(num_known, num_tokens)


def _read_session(requests: list[dict[str, Any]], known: _Known) -> Iterator[Arrival]:
    """A session's requests, those of its subagents where they stand."""
    for request in requests:
        for each in request.get("requests") or (request,):
            runs = tuple((int(first), int(count)) for first, count in each.get("hash_ids_rle") or ())
            if runs:
                think_s, num_tokens, num_output = float(each.get("think_time", 0.0)), int(each["in"]), int(each["out"])
                if sum(count for _, count in runs) > _MAX_BLOCKS:
                    raise ValueError(f"a prompt of more than {_MAX_BLOCKS} blocks")
                known_tokens, is_tool_call = known.add(runs, num_tokens, goes_on=True), each.get("stop") == "tool_use"
                yield Arrival(think_s, num_tokens, num_output, runs, known_tokens, is_tool_call)


def _read_single(row: dict[str, Any], known: _Known) -> Arrival:
    runs: list[tuple[int, int]] = []
    for each in row["hash_ids"]:
        if runs and sum(runs[-1]) == each:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((each, 1))
    num_tokens = int(row["input_length"])
    return Arrival(0.0, num_tokens, int(row["output_length"]), tuple(runs), known.add(tuple(runs), num_tokens))
