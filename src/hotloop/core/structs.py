"""Structs are compiled where they are defined.

msgspec looks at the fields of a struct when it first reads one, and publishes what it found before it is complete: two
threads that read the first one at the same time crash the process (msgspec 0.22).
"""

from typing import TypeVar

import msgspec

Kind = TypeVar("Kind")


def compiled(kind: type[Kind]) -> type[Kind]:
    """A struct that is read, by any thread."""
    msgspec.json.Decoder(kind)
    return kind
