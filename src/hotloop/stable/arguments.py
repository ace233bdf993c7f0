"""Arguments of calls as the model wrote them: many clients parse them and write them anew, with other spaces."""

import json
import threading

from hotloop.core.lru import LruCache

_MAX_CHARS = 4_000_000


def call_key(call_id: str) -> str:
    """What is random in an id: each API has its own word in front of it."""
    return call_id.rpartition("_")[2]


def is_same_json(written: str, given: str) -> bool:
    try:
        return bool(json.loads(written) == json.loads(given))
    except (ValueError, RecursionError):
        return False


class WrittenArguments:
    """By the ids of the calls, each `scope` its own. Used from any thread."""

    def __init__(self) -> None:
        self._texts: LruCache[tuple[str, str], str] = LruCache(_MAX_CHARS)
        self._lock = threading.Lock()

    def keep(self, call_id: str, arguments: str, *, scope: str = "") -> None:
        with self._lock:
            self._texts.put((scope, call_key(call_id)), arguments, len(arguments))

    def restore(self, call_id: str, given: str, *, scope: str = "") -> str:
        """As they were written, where those that are given mean the same."""
        with self._lock:
            written = self._texts.find((scope, call_key(call_id)))
        is_reworded = written is not None and written != given and is_same_json(written, given)
        return written if written is not None and is_reworded else given
