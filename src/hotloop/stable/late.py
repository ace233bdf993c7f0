"""Tools that come while a conversation goes on: told where they came, so that what was before that stays as it was.

Chat templates put tools at the top of a prompt, the *head*. What is in it there stays there; what comes later is told
behind the message that was the newest then, and so is what goes:

    request 1   head: a b    user
    request 2   head: a b    user   assistant   tool <now also c>
    request 3   head: a b    user   assistant   tool <now also c>   assistant   user <no longer a>

Some clients mark the place, and then nothing need be remembered. Where tools simply appear in the list, or vanish from
it, the place is remembered, by what the user and the tools had said by then.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from hotloop.core.lru import LruCache
from hotloop.core.message import Message, Tool
from hotloop.core.sharing import UNSHARED, Sharing

_MAX_CHARS = 4_000_000  # of tools that are remembered
_MAX_PLACES = 2_000_000  # bytes, of where they stand
_MAX_NAMED = 5
_SIZE = 16
_ADDED = "From here on you can also call these functions:"
_AGAIN = "From here on these functions can be called again:"
_REMOVED = "From here on these functions can no longer be called:"

Tools = tuple[Tool, ...]
Late = Mapping[int, "LateTools"]
"""By the message behind which it is told."""
Marked = Sequence[tuple[int, "LateTools"]]
"""In the order of the conversation: the message behind which a client changed its tools, and how; -1 for before all."""


@dataclass(frozen=True, slots=True)
class LateTools:
    """Tools that can be called from some place on, and names of those that no longer can, or can again."""

    added: Tools = ()
    removed: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    """What they are was told before."""


class Placement(NamedTuple):
    head: Tools
    late: Late


class _Known(NamedTuple):
    """A placement by digests of its tools. A place is the number of the message, of those that are no answers."""

    head: tuple[bytes, ...]
    late: tuple[tuple[int, tuple[bytes, ...], tuple[str, ...]], ...] = ()


def name_some(names: Sequence[str]) -> str:
    """A list of names that stays short, whatever it is a list of."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(f"{name:.100}" for name in names[:_MAX_NAMED]) + more


def place_marked(messages: Sequence[Message], tools: Tools, marked: Marked) -> Placement:
    """What a client has marked. What comes before anything was said belongs to the head, and so does what comes first
    where it would be empty: it is there that templates say how to call anything."""
    num_system = sum(1 for _ in takewhile(lambda message: message.role == "system", messages))
    ends = _result_ends(messages)
    head, late = list[LateTools](), dict[int, list[LateTools]]()
    for index, change in marked:
        if not (change.added or change.removed):
            continue
        if index < num_system or not (tools or head or late):
            head.append(change)
        else:
            late.setdefault(ends[min(index, len(ends) - 1)], []).append(
                change
            )  # the last may be the answer's beginning
    return Placement(all_at_once(tools, head), {i: _net(changes) for i, changes in late.items()})


def _result_ends(messages: Sequence[Message]) -> list[int]:
    """For each message the last of the results that follow it, which stay together, or itself."""
    ends = [*range(len(messages))]
    for i in range(len(messages) - 2, -1, -1):
        if messages[i + 1].role == "tool":
            ends[i] = ends[i + 1]
    return ends


def _net(changes: Iterable[LateTools]) -> LateTools:
    """What several changes at one place come to."""
    current: dict[str, Tool | None] = {}
    for change in changes:
        current |= dict.fromkeys(change.removed)
        current |= {tool.name: tool for tool in change.added}
    added = tuple(tool for tool in current.values() if tool)
    return LateTools(added, tuple(name for name, tool in current.items() if not tool))


def all_at_once(tools: Tools, changes: Iterable[LateTools]) -> Tools:
    """The tools that can be called in the end."""
    change = _net(changes)
    gone = {*change.removed, *(tool.name for tool in change.added)}
    return (*(tool for tool in tools if tool.name not in gone), *change.added)


def join_late(head: Tools, *lates: Late) -> Late:
    """Of several, the earlier first. What a tool is, is told once: a client may name it ever so often."""
    told = {tool.name: _words(tool) for tool in head}
    joined: dict[int, LateTools] = {}
    for i in sorted({i for late in lates for i in late}):
        net = _net(late[i] for late in lates if i in late)
        added = tuple(tool for tool in net.added if told.get(tool.name) != _words(tool))
        again = tuple(tool.name for tool in net.added if told.get(tool.name) == _words(tool))
        told |= {tool.name: _words(tool) for tool in added}
        joined[i] = LateTools(added, net.removed, again)
    return joined


def tell_late(late: Late) -> tuple[str, ...]:
    told = []
    for i, change in sorted(late.items()):
        if change.added:
            names = name_some([tool.name for tool in change.added])
            told.append(f"tools: {names} added later, described after messages[{i}]")
        if change.again:
            told.append(f"tools: {name_some(change.again)} added again, noted after messages[{i}]")
        if change.removed:
            told.append(f"tools: {name_some(change.removed)} removed, noted after messages[{i}]")
    return tuple(told)


def word_late(late: LateTools, describe: Callable[[Tools], str]) -> str:
    said = [f"{_ADDED}\n\n{describe(late.added)}"] if late.added else []
    if late.again:
        said.append(f"{_AGAIN} {', '.join(late.again)}")
    if late.removed:
        said.append(f"{_REMOVED} {', '.join(late.removed)}")
    return "\n\n".join(said)


class ToolHistory:
    """Remembers which tools stood in the head of a conversation, and where others came. Used from any thread."""

    def __init__(self, sharing: Sharing = UNSHARED) -> None:
        self._tools: LruCache[bytes, Tool] = LruCache(_MAX_CHARS)
        self._known: LruCache[bytes, _Known] = LruCache(_MAX_PLACES)
        self._places: LruCache[bytes, bytes] = LruCache(_MAX_PLACES)
        self._lock = threading.RLock()
        self._keep_tool = sharing.share("tool", tuple[bytes, Tool], self._put_tool)
        self._keep_known = sharing.share("tools", tuple[_Known, bytes, bytes], self._put_known)

    def settle(self, messages: Sequence[Message], tools: Tools, *, scope: str = "") -> Placement:
        """Where these tools are told of. The same conversation with the same tools is placed as before; one that goes
        on with others goes on from there, unless hardly any of them are left or one is now another than it was."""
        spoken = [i for i, message in enumerate(messages) if message.role in ("user", "tool")]
        if not spoken or not tools:
            return Placement(tools, {})
        places = _places(messages, scope)
        digests = {_digest(repr(_words(tool))): tool for tool in tools}
        group = _digest(repr([*digests]))
        with self._lock:
            known = self._find(places, digests, group) or _Known(tuple(digests))
            placement = self._read(known, digests, spoken)
            self._keep(known, digests, places[-1], group)
        return placement

    def _find(self, places: Sequence[bytes], digests: Mapping[bytes, Tool], group: bytes) -> _Known | None:
        for number in range(len(places) - 1, -1, -1):
            if known := self._look_up(places[number] + group):
                return known
            if number < len(places) - 1 and (earlier := self._look_up(places[number])):
                return self._go_on(earlier, digests, len(places) - 1)
        return None

    def _look_up(self, place: bytes) -> _Known | None:
        key = self._places.find(place)
        known = self._known.find(key) if key else None
        is_whole = known and all(self._tools.find(digest) for digest in _all_digests(known))
        return known if is_whole else None

    def _go_on(self, earlier: _Known, digests: Mapping[bytes, Tool], number: int) -> _Known | None:
        """None where it is better to begin anew."""
        current: dict[str, bytes] = {}
        for _, added, removed in ((0, earlier.head, ()), *earlier.late):
            current |= {self._name(digest): digest for digest in added}
            current = {name: digest for name, digest in current.items() if name not in removed}
        names = {tool.name: digest for digest, tool in digests.items()}
        kept = current.keys() & names.keys()
        added = tuple(digest for name, digest in names.items() if name not in current)
        removed = tuple(name for name in current if name not in names)
        has_changed = any(current[name] != names[name] for name in kept)
        if has_changed or 2 * len(kept) < len(current) or not (added or removed):
            return None
        return earlier._replace(late=(*earlier.late, (number, added, removed)))

    def _name(self, digest: bytes) -> str:
        tool = self._tools.find(digest)
        assert tool, "it was looked for"
        return tool.name

    def _read(self, known: _Known, digests: Mapping[bytes, Tool], spoken: Sequence[int]) -> Placement:
        def find(keys: Iterable[bytes]) -> Tools:
            found = (digests.get(key) or self._tools.find(key) for key in keys)
            return tuple(tool for tool in found if tool)

        late = {spoken[number]: LateTools(find(added), removed) for number, added, removed in known.late}
        return Placement(find(known.head), late)

    def _keep(self, known: _Known, digests: Mapping[bytes, Tool], place: bytes, group: bytes) -> None:
        for digest, tool in digests.items():
            if not self._tools.find(digest):
                self._keep_tool((digest, tool))
        self._keep_known((known, place, group))

    def _put_tool(self, given: tuple[bytes, Tool]) -> None:
        digest, tool = given
        with self._lock:
            self._tools.put(digest, tool, len(repr(tool)))

    def _put_known(self, placed: tuple[_Known, bytes, bytes]) -> None:
        known, place, group = placed
        key = _digest(repr(known))
        num_removed = sum(len(name) for _, _, removed in known.late for name in removed)
        with self._lock:
            self._known.put(key, known, _SIZE * (1 + len([*_all_digests(known)])) + num_removed)
            for each in (place, place + group):
                self._places.put(each, key, 2 * _SIZE)


def _places(messages: Sequence[Message], scope: str) -> list[bytes]:
    """A digest for each message that is no answer: of all that was said up to it by anybody but the model, whose words
    come back in many ways."""
    chain = hashlib.blake2b(repr(scope).encode(), digest_size=_SIZE)
    places = []
    for message in messages:
        if message.role != "assistant":
            chain.update(repr((message.role, message.content)).encode(errors="backslashreplace"))
        if message.role in ("user", "tool"):
            places.append(chain.digest())
    return places


def _words(tool: Tool) -> Tool:
    """As a prompt has it: strictness is the grammar's."""
    return replace(tool, is_strict=True)


def _all_digests(known: _Known) -> Iterable[bytes]:
    yield from known.head
    for _, added, _ in known.late:
        yield from added


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=_SIZE).digest()
