"""What a translation could not carry over, in words. They travel in a header: plain ASCII, short and few."""

import re

_MAX_CHARS = 160
_MAX_NOTES = 16
_UNSAFE = re.compile(r"[^ -~]")


class Notes:
    """Each is kept once, in the order they came."""

    def __init__(self) -> None:
        self._said: dict[str, None] = {}

    def add(self, note: str) -> None:
        if len(self._said) < _MAX_NOTES:
            self._said.setdefault(_UNSAFE.sub("?", note)[:_MAX_CHARS])

    def lose(self, names: list[str], where: str) -> None:
        """Fields that mean nothing where the request goes."""
        if names:
            self.add(f"not known to {where}: {', '.join(sorted(names))}")

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._said)
