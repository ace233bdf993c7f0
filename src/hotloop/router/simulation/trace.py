"""Recorded traffic: when each request came, how long its prompt and answer were, and which blocks the prompt shares.

Two shapes are read, a line of JSON each: sessions of coding agents (`requests` with `hash_ids_rle`, ids local to the
session) and single requests (`timestamp` in ms, `hash_ids` of 512-token blocks). A trace can be made longer by playing
its sessions again as other sessions, at other times.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.errors import ConfigError

Runs = tuple[tuple[int, int], ...]
"""Block ids as runs (first, how many)."""

_SINGLE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; `think_s` is how long after the answer before it, in its session, it came."""

    session: int
    at_s: float
    think_s: float
    num_tokens: int
    num_output: int
    runs: Runs


@dataclass(frozen=True, slots=True)
class Trace:
    block_tokens: int
    sessions: tuple[tuple[Arrival, ...], ...]
    is_shared: bool
    """Whether block ids mean the same in all sessions."""

    @property
    def num_requests(self) -> int:
        return sum(map(len, self.sessions))


def read_trace(path: Path) -> Trace:
    """Raises ConfigError where the file is none of the shapes above."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
        if not rows:
            raise ConfigError(f"{path} is empty")
        return _read_singles(rows) if "hash_ids" in rows[0] else _read_sessions(rows)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not a trace: {error!r}") from None


def key_of(arrival: Arrival, *, is_shared: bool) -> bytes:
    """Hashes of the prompt's blocks: here an id already stands for a block and all before it, within its session."""
    offset = 0 if is_shared else (arrival.session + 1) << 32
    parts = [np.arange(first + offset, first + offset + count, dtype=np.int64) for first, count in arrival.runs]
    return np.concatenate(parts).tobytes() if parts else b""


def repeat(trace: Trace, num_requests: int) -> Iterator[tuple[Arrival, ...]]:
    """Sessions until there are so many requests: the recorded ones, and then the same again as others."""
    num_given, session = 0, 0
    while num_given < num_requests:
        for arrivals in trace.sessions:
            yield tuple(replace(arrival, session=session) for arrival in arrivals)
            session += 1
            num_given += len(arrivals)
            if num_given >= num_requests:
                return


def _read_sessions(rows: list[dict[str, Any]]) -> Trace:
    sessions = tuple(arrivals for i, row in enumerate(rows) if (arrivals := tuple(_arrivals(i, row["requests"]))))
    return Trace(int(rows[0]["block_size"]), sessions, is_shared=False)


def _arrivals(session: int, requests: list[dict[str, Any]]) -> Iterator[Arrival]:
    for request in requests:
        inner = request.get("requests")
        for each in inner if inner is not None else (request,):
            if each.get("hash_ids_rle"):
                runs = tuple((int(first), int(count)) for first, count in each["hash_ids_rle"])
                at_s = float(request["t"]) + (float(each["t"]) if inner is not None else 0.0)
                yield Arrival(
                    session, at_s, float(each.get("think_time", 0.0)), int(each["in"]), int(each["out"]), runs
                )


def _read_singles(rows: list[dict[str, Any]]) -> Trace:
    """Nobody says which request belongs to which session: each is one of its own."""
    sessions = tuple(
        (
            Arrival(
                i,
                row["timestamp"] / 1000,
                0.0,
                int(row["input_length"]),
                int(row["output_length"]),
                _runs(row["hash_ids"]),
            ),
        )
        for i, row in enumerate(rows)
    )
    return Trace(_SINGLE_BLOCK_TOKENS, sessions, is_shared=True)


def _runs(ids: list[int]) -> Runs:
    runs: list[tuple[int, int]] = []
    for each in chain(ids):
        if runs and sum(runs[-1]) == each:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((each, 1))
    return tuple(runs)
