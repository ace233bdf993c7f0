"""How long a step takes, and for how long it may read prompts so that nobody waits long for the next one.

A step that reads takes longer than one that does not by what is read in it, and a token takes the longer the more come
before it. All of that is learnt from the steps themselves, so nothing here knows the hardware:

    took_s - plain_s  =  token_s x (tokens read)  +  pair_s x (tokens read x tokens before each)

Where one is alone a step reads as much as the backend can. Where others are served as well, it reads for at most twice
as long as a step takes that reads nothing, or three times as long as `least` tokens take: short enough for whoever
comes next, long enough that little is wasted on what every step costs. Where some wait for their next word, the time is
shared: a reader counts as two writers, and all who read have a quarter of the time at least. A step that reads takes
`least` tokens or more, since on a GPU fewer take as long; what that takes beyond their share the readers owe.
"""

import math
from collections.abc import Iterable

from hotloop.engine.step import Slice

MOST = 2.0
"""So many times as long as a step takes that reads nothing, a step reads if others are served, at most."""
NUM_PIECES = 3
"""Or as long as it takes to read so many times the least."""
LEAST = 1 / 3
"""The same where many write and few read."""
READER = 2.0  # writers
MOMENT_S = 1.0
"""So long after others were served steps stay short: they may be back."""
PROBE_S = 1.0
"""So often, while somebody writes, a step reads nothing, to see how long that takes now."""

_LEARNING_RATE = 0.1
_FADE = 0.02  # of what was learnt from the steps before is forgotten with each one
_FEW = 128  # tokens; of more than that not twice as many as ever before are read in a step that others wait for


class StepPace:
    """Learns from every step; says how many tokens fit into so many seconds."""

    def __init__(self, token_s: float, least: int = 1) -> None:
        self.plain_s = 0.0
        """How long a step takes, lately, that reads nothing; 0 until there was a step."""
        self.token_s = token_s
        self.pair_s = 0.0
        self._plain_ago_s = 0.0  # since a step read nothing, without the time that lay idle
        self._shared_at = -math.inf
        self._most = _FEW
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._least = least
        self._owed_s = 0.0

    def learn(self, parts: Iterable[Slice], took_s: float) -> int:
        """A step of these took that long; returns how many tokens of prompts were read in it."""
        self._plain_ago_s += took_s
        reads = [part for part in parts if _is_reading(part)]
        if not reads:
            rate = max(_LEARNING_RATE, min(1.0, self._plain_ago_s / PROBE_S)) if self.plain_s else 1.0
            self.plain_s += rate * (took_s - self.plain_s)
            self._plain_ago_s = 0.0
            return 0
        num_tokens = sum(part.num_tokens for part in reads)
        num_pairs = sum(part.num_tokens * (part.begin + part.num_tokens / 2) for part in reads)
        self._most = max(self._most, num_tokens)
        self.plain_s = min(self.plain_s or took_s, took_s)  # without what it read it would not have taken longer
        if num_tokens >= self._least:
            self._fit(num_tokens, num_pairs, took_s - self.plain_s)
        return num_tokens

    def room_s(self, num_reading: int, num_writing: int, now: float) -> float:
        """How long a step may read, if so many have a prompt to read and so many wait for their next word."""
        if num_reading + num_writing > 1:
            self._shared_at = now
        if num_writing and self._plain_ago_s > PROBE_S:
            return 0.0
        if not self.plain_s or now - self._shared_at > MOMENT_S:
            return math.inf
        most_s = max(MOST * self.plain_s, NUM_PIECES * self.cost_s(0, self._least))
        share_s = self.plain_s * READER * num_reading / num_writing if num_writing else most_s
        room_s = min(most_s, max(LEAST * self.plain_s, share_s))
        self._owed_s = max(0.0, self._owed_s - room_s) if num_writing else 0.0
        return 0.0 if self._owed_s > 0 else room_s

    def owe(self, read_s: float) -> None:
        """A step reads for so long beyond what it had room for."""
        self._owed_s += max(0.0, read_s)

    def cost_s(self, begin: int, num_tokens: int) -> float:
        """What it takes to read so many tokens behind the first `begin`."""
        return num_tokens * (self.token_s + self.pair_s * (begin + num_tokens / 2))

    def num_tokens(self, begin: int, room_s: float) -> float:
        """How many tokens behind the first `begin` are read in that time."""
        if room_s == math.inf:
            return math.inf
        linear_s = self.token_s + self.pair_s * begin
        sum_s = linear_s + math.sqrt(linear_s**2 + 2 * self.pair_s * room_s)
        return max(self._least, min(2 * room_s / sum_s if sum_s else math.inf, 2 * self._most))

    def _fit(self, num_tokens: float, num_pairs: float, took_s: float) -> None:
        """Least squares over the latest steps; what they cannot tell apart counts as the tokens' own."""
        new = (num_tokens**2, num_tokens * num_pairs, num_pairs**2, num_tokens * took_s, num_pairs * took_s)
        kept = 1 - min(_FADE, new[0] / (self._sums[0] or math.inf))  # a few tokens do not tell as much as many
        nn, np, pp, nt, pt = (kept * old + each for old, each in zip(self._sums, new, strict=True))
        self._sums = nn, np, pp, nt, pt
        determinant = nn * pp - np * np
        if determinant > 1e-3 * nn * pp:
            token_s, pair_s = (nt * pp - pt * np) / determinant, (pt * nn - nt * np) / determinant
            if token_s >= 0 and pair_s >= 0:
                self.token_s, self.pair_s = token_s, pair_s
                return
        self.token_s, self.pair_s = nt / nn, 0.0


def _is_reading(part: Slice) -> bool:
    """Whether a slice reads of a prompt, and does more than choose the next token."""
    return part.end - part.begin > 1 and part.begin < part.request.num_prompt
