"""Tokens to text, as they come: whole characters only, and nothing that may turn out to be a stop string.

How the text was cut into tokens never shows: a request ends at the stop string that is complete first.
"""

import codecs

from hotloop.core.request import SamplingParams
from hotloop.models.tokenizer import Tokenizer


class TextStream:
    """The text of one request. `pending` might be the beginning of a stop string and is held back."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._stops = params.stop
        self._include_stop = params.include_stop
        self._bytes_of = tokenizer.visible_bytes if params.keep_special else tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_whole = True  # whether no part of a character is left
        self._pending = ""

    def push(self, token_id: int, *, may_stop: bool = True) -> tuple[str, str | None]:
        """The text that is final with this token, and the stop string that ended it, if one did (and may)."""
        data = self._bytes_of(token_id)
        if self._is_whole and data.isascii():
            text = data.decode("ascii")
        else:
            text = self._decoder.decode(data)
            self._is_whole = not self._decoder.getstate()[0]
        return self._scan(text, may_stop) if self._stops else (text, None)

    def finish(self) -> str:
        """What was held back, now that no more comes; half a character becomes a replacement character."""
        text, self._pending = self._pending + self._decoder.decode(b"", final=True), ""
        return text

    def _scan(self, text: str, may_stop: bool) -> tuple[str, str | None]:
        num_old = len(self._pending)
        self._pending += text
        stop, end = self._first_stop(num_old) if may_stop else (None, 0)
        if stop is not None:
            text, self._pending = self._pending[: end if self._include_stop else end - len(stop)], ""
            return text, stop
        num_final = len(self._pending) - self._num_held()
        text, self._pending = self._pending[:num_final], self._pending[num_final:]
        return text, None

    def _first_stop(self, num_old: int) -> tuple[str | None, int]:
        """The stop string that the new text completes first, and where it ends; of two that end together the longer."""
        found = []
        for stop in self._stops:
            begin = self._pending.find(stop, max(0, num_old - len(stop) + 1))
            if begin >= 0:
                found.append((begin + len(stop), -len(stop), stop))
        end, _, first = min(found, default=(0, 0, None))
        return first, end

    def _num_held(self) -> int:
        """The longest end of the pending text with which some stop string begins."""
        longest = max(map(len, self._stops)) - 1
        for size in range(min(longest, len(self._pending)), 0, -1):
            tail = self._pending[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
