"""What clients put at the top of a prompt although it changes with every request, so that nothing could be reused.

The list is short and literal: each entry is what a known client writes in the system message that begins its prompts.
What means nothing to the model is dropped. What does mean something, the time of day, is moved behind the newest
message once it is seen to change; there it stays while the conversation grows, and the next time goes behind the next:

    given   system: <10:01> You are ...   user: hi                       system: <10:02> You are ...   user: hi   ...
    read    system: You are ...           user: hi <10:01>               system: You are ...           user: hi <10:01>
                                                                         assistant: hello              user: bye <10:02>
"""

import hashlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from hotloop.core.lru import LruCache
from hotloop.core.message import Message
from hotloop.core.sharing import UNSHARED, Sharing
from hotloop.stable.system import word_note

_MAX_CHARS = 1_000_000

Turns = tuple[Message, ...]


class Nonce(NamedTuple):
    """A known one. `word`, in lower case, stands in the line with which its pattern begins. `is_news`: the model should
    still hear of it."""

    name: str
    word: str
    pattern: re.Pattern[str]
    is_news: bool


_CLOCK = r"[^\n]*\d{1,2}:\d{2}[^\n]*"

KNOWN = (
    # Claude Code: a hash of the request as the first system block; other text may follow on the same line.
    Nonce(
        "billing header",
        "x-anthropic-billing-header:",
        re.compile(r"^x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\s]*;)+[ \t]*\n?", re.M),
        False,
    ),
    # LibreChat, pi and many others, in one line: `Current date and time: Tuesday, June 9, 2026, 03:04:20 PM +03:00`.
    Nonce(
        "time of day",
        "current",
        re.compile(
            rf"^[ \t]*(?:- )?(?:The )?current (?:date(?: and |/| & )?)?time(?: is)?:?[ \t]{_CLOCK}\n?", re.M | re.I
        ),
        True,
    ),
    # OpenClaw, nanobot and their kin, as a section of two lines.
    Nonce(
        "time of day", "current", re.compile(rf"^## Current (?:Date (?:&|and) )?Time\n+{_CLOCK}\n?", re.M | re.I), True
    ),
    # goose: `The current date is 2025-05-04 10:20:30.`
    Nonce(
        "time of day",
        "current",
        re.compile(r"^The current date is \d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?\.?[ \t]*\n?", re.M),
        True,
    ),
)


_VOLATILE = re.compile(
    r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"  # an id
    r"|\b(?=[\w-]*[a-z])(?=[\w-]*\d)[\w-]{20,}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"
    r"|\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"  # a time
    r"|\b\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s?[AP]\.?M\b)?|\b1\d{9}(?:\d{3}){0,3}\b",
    re.I,
)
_DIGIT = re.compile(r"\d")
"""All of these have one."""
_MAX_LEARNED = 32


@dataclass(frozen=True, slots=True)
class _Lines:
    """System messages line by line: the number of each one's message, and the line."""

    lines: list[tuple[int, str]]
    volatile: list[int]
    """Which of them have times or ids."""
    place: bytes
    """Says what the messages are but for these."""
    has_known: bool
    """Whether there are nonces of known clients in them."""


class Nonces:
    """Takes nonces out of the prefix, and remembers where it put those it moved. Used from any thread. With `learns` a
    line of the system's is taken for one, too, when it was seen twice with nothing else changed than its times and ids.
    """

    def __init__(self, *, learns: bool = False, sharing: Sharing = UNSHARED) -> None:
        self._learns = learns
        self._read: LruCache[tuple[str, tuple[str, ...]], _Lines] = LruCache(_MAX_CHARS)
        self._lines: LruCache[bytes, tuple[tuple[str, ...], frozenset[int]]] = LruCache(_MAX_CHARS)
        self._notes: LruCache[bytes, str] = LruCache(_MAX_CHARS)
        self._times: LruCache[bytes, tuple[str, bool]] = LruCache(_MAX_CHARS)
        self._lock = threading.RLock()
        self._keep_note = sharing.share("note", tuple[bytes, str], self._put_note)
        self._keep_time = sharing.share("time", tuple[bytes, str, bool], self._put_time)

    def settle(self, messages: Sequence[Message], *, scope: str = "") -> tuple[Turns, tuple[str, ...]]:
        """The messages as they are read, and what was done to them."""
        system = tuple(takewhile(lambda message: message.role == "system", messages))
        left, news, changes = self.strip(system, scope=scope)
        settled = left + tuple(messages[len(system) :])
        return (self.move(settled, news, scope=scope) if news else settled), changes

    def strip(self, system: Turns, *, scope: str = "") -> tuple[Turns, str, tuple[str, ...]]:
        """The system messages that begin a prompt without their nonces, what of these is to be moved, and what was
        done."""
        read = self._read_lines(tuple(message.content for message in system), scope) if self._learns else None
        if read and not (read.has_known or read.volatile):
            return system, "", ()
        system, _, dropped = _without(system, [nonce for nonce in KNOWN if not nonce.is_news])
        timeless, news, moved = _without(system, [nonce for nonce in KNOWN if nonce.is_news])
        if not self._is_changing(timeless, news, scope):
            timeless, news, moved = system, "", ()
        if self._learns:
            timeless, learned = self._without_learned(timeless, scope)
            news = "\n".join(filter(None, (news, *learned)))
            moved += ("system: a line that changes was moved behind the newest message",) if learned else ()
        return timeless, news, dropped + moved

    def _without_learned(self, system: Turns, scope: str) -> tuple[Turns, tuple[str, ...]]:
        """The messages without the lines that were seen to change, and these."""
        read = self._read_lines(tuple(message.content for message in system), scope)
        lines, volatile, place = read.lines, read.volatile, read.place
        if not volatile:
            return system, ()
        now = tuple(lines[at][1] for at in volatile)
        with self._lock:
            before, changing = self._lines.find(place) or (now, frozenset())
            changing |= {at for at, *pair in zip(volatile, before, now, strict=True) if pair[0] != pair[1]}
            self._lines.put(place, (now, changing), sum(map(len, now)))
        if not changing:
            return system, ()
        left = [(i, line) for at, (i, line) in enumerate(lines) if at not in changing]
        texts = ["\n".join(line for i, line in left if i == number) for number in range(len(system))]
        kept = tuple(replace(message, content=text) for message, text in zip(system, texts, strict=True))
        return kept, tuple(lines[at][1] for at in sorted(changing))

    def _read_lines(self, contents: tuple[str, ...], scope: str) -> _Lines:
        """Most are the same from request to request, and to look for times and ids takes long."""
        with self._lock:
            read = self._read.find((scope, contents))
        if read is None:
            lines = [(i, line) for i, content in enumerate(contents) for line in content.split("\n")]
            masked = [_VOLATILE.sub("\0", line) if _DIGIT.search(line) else line for _, line in lines]
            volatile = [at for at, (_, line) in enumerate(lines) if masked[at] != line][:_MAX_LEARNED]
            place = _digest(scope, (Message("system", "\n".join(masked)),))
            has_known = any(_search(nonce, content) for nonce in KNOWN for content in contents)
            read = _Lines(lines, volatile, place, has_known)
            with self._lock:
                self._read.put((scope, contents), read, 3 * sum(map(len, contents)))
        return read

    def _is_changing(self, timeless: Turns, news: str, scope: str) -> bool:
        """Whether the same words were ever seen with another time. A time that stands still is part of the story."""
        if not news:
            return False
        place = _digest(scope, timeless)
        with self._lock:
            known = self._times.find(place)
            before, is_changing = known or (news, False)
            is_changing = is_changing or before != news
            if known != (news, is_changing):
                self._keep_time((place, news, is_changing))
        return is_changing

    def _put_time(self, seen: tuple[bytes, str, bool]) -> None:
        place, news, is_changing = seen
        with self._lock:
            self._times.put(place, (news, is_changing), len(news))

    def _put_note(self, moved: tuple[bytes, str]) -> None:
        place, news = moved
        with self._lock:
            self._notes.put(place, news, len(news))

    def move(self, messages: Turns, news: str, *, scope: str = "") -> Turns:
        """The news behind the newest message; and behind older ones what was put there when they were the newest."""
        places = [i for i, message in enumerate(messages) if message.role in ("user", "tool")]
        moved, last = list(messages), ""
        chain = hashlib.blake2b(_digest(scope, ()), digest_size=16)
        for i, message in enumerate(messages):
            chain.update(_bytes(message))
            if i not in places:
                continue
            is_newest = i == places[-1]
            with self._lock:
                if is_newest and news != last:
                    self._keep_note((chain.digest(), news))
                note = self._notes.find(chain.digest())
            if note and note != last:
                moved[i] = replace(message, content=f"{message.content}\n\n{word_note(note)}")
                last = note
        return tuple(moved)


def _without(messages: Turns, nonces: Sequence[Nonce]) -> tuple[Turns, str, tuple[str, ...]]:
    """The messages without these nonces, what those were, and what is to be said about it."""
    news: list[str] = []
    changes: list[str] = []
    bare = list(messages)
    for i, message in enumerate(messages):
        content = message.content
        for nonce in nonces:
            if match := _search(nonce, content):
                content = content[: match.start()] + content[match.end() :]
                news.append(match[0].strip())
                done = "moved behind the newest message" if nonce.is_news else "dropped"
                changes.append(f"messages[{i}]: the {nonce.name} was {done}")
        if content != message.content:
            bare[i] = replace(message, content=content)
    return tuple(bare), "\n".join(news), tuple(changes)


def _search(nonce: Nonce, content: str) -> re.Match[str] | None:
    """As the pattern's own `search`, which would look at every line."""
    lowered = content.lower()
    if len(lowered) != len(content):  # a few letters are two in lower case
        return nonce.pattern.search(content)
    at = lowered.find(nonce.word)
    while at >= 0:
        if match := nonce.pattern.match(content, lowered.rfind("\n", 0, at) + 1):
            return match
        end = lowered.find("\n", at)
        at = lowered.find(nonce.word, end) if end >= 0 else -1
    return None


def _digest(scope: str, messages: Turns) -> bytes:
    data = repr(scope).encode() + b"".join(map(_bytes, messages))
    return hashlib.blake2b(data, digest_size=16).digest()


def _bytes(message: Message) -> bytes:
    return repr(message).encode(errors="backslashreplace")
