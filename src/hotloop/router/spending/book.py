"""What was spent, by month, key, model and session tree; kept in a file across restarts, if one is given.

A tree is what works for one session: sub-agents count where the session that began them does.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cachetools import LRUCache

from hotloop.core.errors import ConfigError
from hotloop.core.files import write_private
from hotloop.core.structs import compiled
from hotloop.router.spending.quotas import Used

log = logging.getLogger("hotloop.router")

MAX_TREES = 5_000
"""Of a month; the spending of others is counted together."""
_MAX_SESSIONS = 50_000
_WRITE_EVERY_S = 5.0
OTHERS = "(others)"


@compiled
class Spent(msgspec.Struct):
    """A line: requests that were answered, and what they took."""

    month: str
    key: str
    model: str
    tree: str
    requests: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0
    money: float = 0.0


@compiled
class _File(msgspec.Struct):
    spent: list[Spent] = []


@dataclass(frozen=True, slots=True)
class Charge:
    """Answers, in tokens and money: one, or none where what was written reached nobody."""

    num_requests: int
    num_prompt: int
    num_cached: int
    num_output: int
    money: float


class SpendBook:
    def __init__(self, path: Path | None = None) -> None:
        """Raises ConfigError where the file cannot be read."""
        self.path = path
        self._lines: dict[tuple[str, str, str, str], Spent] = {}
        self._trees: Counter[str] = Counter()
        self._roots: LRUCache[tuple[str, str], str] = LRUCache(_MAX_SESSIONS)
        self._is_dirty = False
        for line in read_spent(path) if path and path.exists() else ():
            self._put(line)

    @property
    def lines(self) -> list[Spent]:
        return [*self._lines.values()]

    def root(self, key: str, session: str, parent: str) -> str:
        """The session at whose request another works, and which began it: by the names that this key gave them."""
        above = parent or session
        root = self._roots.get((key, above), above)
        if session:
            self._roots[key, session] = root
        return root

    def add(self, month: str, key: str, model: str, tree: str, charge: Charge) -> None:
        place = month, key, model, tree
        if place not in self._lines and tree and self._trees[month] >= MAX_TREES:
            place = month, key, model, OTHERS
        line = self._lines.get(place) or self._put(Spent(*place))
        line.requests += charge.num_requests
        line.prompt += charge.num_prompt
        line.cached += charge.num_cached
        line.output += charge.num_output
        line.money += charge.money
        self._is_dirty = True

    def used(self) -> Iterator[tuple[str, str, Used]]:
        """What each key used of each month."""
        for (key, month), lines in _grouped(self._lines.values()).items():
            yield (
                key,
                month,
                Used(
                    sum(each.requests for each in lines),
                    sum(each.prompt + each.output for each in lines),
                    sum(each.money for each in lines),
                ),
            )

    async def keep(self) -> None:
        """Write what is new every few seconds, until cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(_WRITE_EVERY_S)
                if data := self._take():
                    await asyncio.to_thread(self._write, data)
        finally:
            self.write()

    def write(self) -> None:
        if data := self._take():
            self._write(data)

    def _take(self) -> bytes:
        """What is to be written; nothing if that is written already."""
        if not self.path or not self._is_dirty:
            return b""
        self._is_dirty = False
        return msgspec.json.encode(_File(self.lines))

    def _write(self, data: bytes) -> None:
        """A disk that is full costs the file, not the requests."""
        assert self.path
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_private(self.path, data)
        except OSError as error:
            self._is_dirty = True
            log.error("spending not written: file=%s reason=%s", self.path, error.strerror)

    def _put(self, line: Spent) -> Spent:
        self._lines[line.month, line.key, line.model, line.tree] = line
        self._trees[line.month] += bool(line.tree)
        return line


def read_spent(path: Path) -> list[Spent]:
    """Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).spent
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} holds no spending: {error}") from None


def _grouped(lines: Iterable[Spent]) -> dict[tuple[str, str], list[Spent]]:
    groups: dict[tuple[str, str], list[Spent]] = {}
    for line in lines:
        groups.setdefault((line.key, line.month), []).append(line)
    return groups
