"""Recorded traffic: how long each prompt and answer was, which blocks the prompt shares, and what came after what.

Two shapes are read, a line of JSON each: sessions of coding agents (`requests` with `hash_ids_rle`, ids local to the
session) and single requests (`timestamp` in ms, `hash_ids` of 512-token blocks). A trace can be made longer by playing
its sessions again as other people's: nothing of theirs was read before.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.errors import ConfigError
from hotloop.core.files import read_lines
from hotloop.router.placement.index import PrefixIndex

Runs = tuple[tuple[int, int], ...]
"""Block ids as runs (first, how many)."""

_SINGLE_BLOCK_TOKENS = 512
_WORLD_IDS = 1 << 32
"""How far the ids of what is played again are from those before."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; `think_s` is how long after the answer before it, in its session, it came."""

    think_s: float
    num_tokens: int
    num_output: int
    runs: Runs
    known_tokens: int
    """How much of it one replica with room for everything would have read already."""
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
        return _read_singles(rows) if "hash_ids" in rows[0] else _read_sessions(rows)
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not a trace: {error!r}") from None


def key_of(runs: Runs, world: int = 0) -> bytes:
    """Hashes of a prompt's blocks: an id already stands for a block and all before it, within its world."""
    offset = world * _WORLD_IDS
    parts = [np.arange(first + offset, first + offset + count, dtype=np.int64) for first, count in runs]
    return np.concatenate(parts).tobytes() if parts else b""


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


class _Everything:
    """One replica with room for everything."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._index = PrefixIndex()
        self._index.add_replica("", _WORLD_IDS)

    def read(self, runs: Runs, num_tokens: int) -> int:
        """How much of a prompt was known; all of it is now."""
        key = key_of(runs)
        num_blocks = self._index.match(key).num_blocks
        self._index.insert("", key)
        return min(num_blocks * self._block_tokens, num_tokens)


def _read_sessions(rows: list[dict[str, Any]]) -> Trace:
    block_tokens = int(rows[0]["block_size"])
    read = (tuple(_arrivals(row["requests"], _Everything(block_tokens))) for row in rows)
    return Trace(block_tokens, tuple(session for session in read if session), is_shared=False)


def _arrivals(requests: list[dict[str, Any]], everything: _Everything) -> Iterator[Arrival]:
    """A session's requests, those of its subagents where they stand."""
    for request in requests:
        for each in request.get("requests") or (request,):
            runs = tuple((int(first), int(count)) for first, count in each.get("hash_ids_rle") or ())
            if runs:
                num_tokens = int(each["in"])
                yield Arrival(
                    think_s=float(each.get("think_time", 0.0)),
                    num_tokens=num_tokens,
                    num_output=int(each["out"]),
                    runs=runs,
                    known_tokens=everything.read(runs, num_tokens),
                    is_tool_call=each.get("stop") == "tool_use",
                )


def _read_singles(rows: list[dict[str, Any]]) -> Trace:
    """Nobody says which request belongs to which session: each is one of its own."""
    everything = _Everything(_SINGLE_BLOCK_TOKENS)
    return Trace(
        _SINGLE_BLOCK_TOKENS,
        tuple((_single(row, everything),) for row in sorted(rows, key=lambda row: float(row["timestamp"]))),
        is_shared=True,
    )


def _single(row: dict[str, Any], everything: _Everything) -> Arrival:
    runs, num_tokens = _runs(row["hash_ids"]), int(row["input_length"])
    return Arrival(0.0, num_tokens, int(row["output_length"]), runs, everything.read(runs, num_tokens))


def _runs(ids: list[int]) -> Runs:
    runs: list[tuple[int, int]] = []
    for each in ids:
        if runs and sum(runs[-1]) == each:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((each, 1))
    return tuple(runs)
