"""Valid files and texts made into nearly valid ones. The same seed gives the same ones again."""

import json
import random
from copy import deepcopy
from typing import Any

_NUMBERS = (0, 1, -1, 2, 3, 7, 255, 256, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)
_VALUES: tuple[Any, ...] = (None, True, False, "", "x", [], {}, 0.5, -0.0, 1e308, 10**30, "\ud800", "a" * 3000, [[]])
_SPICE = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"\r",
    b"\n\n",
    b'"',
    b"{",
    b"}",
    b"[" * 3000,
    b"[]",
    b"data:",
    b"\xef\xbb\xbf",
    b"\xf0\x9f",
)
_MAX_CUT = 64
_DEEP = b'"something nested"'


def mutate(data: bytes, rng: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """With up to four changes; some bring in a piece of one of the others."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 4))):
        _change(changed, rng, others or (data,))
    return bytes(changed)


def _change(data: bytearray, rng: random.Random, others: tuple[bytes, ...]) -> None:
    at = _place(data, rng)
    end = min(len(data), at + rng.randint(1, _MAX_CUT))
    match rng.randrange(10):
        case 0 if data:
            data[at] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[at] = rng.randrange(256)
        case 2:
            del data[at:]
        case 3:
            del data[at:end]
        case 4:
            data[at:at] = data[at:end] * rng.choice((1, 1, 2, 50))
        case 5:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        case 6:
            size = rng.choice((1, 2, 4, 8))
            data[at : at + size] = _number(rng, size)
        case 7:
            data[at:end] = rng.choice(_SPICE)
        case 8:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            data[at:end] = other[begin : begin + rng.randint(1, 4 * _MAX_CUT)]
        case _:
            data[at:end] = reversed(data[at:end])


def _place(data: bytearray, rng: random.Random) -> int:
    """Headers are at the front: most changes are made there."""
    most = len(data) if rng.random() < 0.3 else min(len(data), rng.choice((16, 64, 512, 4096)))
    return rng.randrange(most) if most else 0


def _number(rng: random.Random, size: int) -> bytes:
    return (rng.choice(_NUMBERS) % (1 << 8 * size)).to_bytes(size, "little")


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """A JSON text with up to three of its values changed; now and then its bytes."""
    if rng.random() < 0.15:
        return mutate(data, rng)
    value = json.loads(data)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        value = _change_value(value, rng)
    depth = rng.choice((1, 5, 90, 400, 5000))
    return json.dumps(value).encode().replace(_DEEP, b'[{"x":' * depth + b"1" + b"}]" * depth)


def _change_value(value: Any, rng: random.Random) -> Any:
    """Down a random path; at its end a value is replaced, left out, doubled, renamed or put deeper."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        key = rng.choice([*value]) if isinstance(value, dict) else rng.randrange(len(value))
        dice = rng.random()
        if dice < 0.06:
            del value[key]
        elif dice < 0.1 and isinstance(value, list):
            value[key:key] = [deepcopy(value[key]) for _ in range(rng.choice((1, 3, 300)))]
        elif dice < 0.1:
            value[rng.choice([*value])] = deepcopy(value[key])
        elif dice < 0.13 and isinstance(value, dict):
            value[rng.choice(("", "x", "type", "\ud800", "__class__", str(key) + "s"))] = value.pop(key)
        else:
            value[key] = _change_value(value[key], rng)
        return value
    return _another(value, rng)


def _another(value: Any, rng: random.Random) -> Any:
    dice = rng.random()
    if isinstance(value, str) and dice < 0.4:
        return mutate(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    if isinstance(value, int) and dice < 0.5:
        return rng.choice((value + 1, value - 1, -value, value * 2, value << 32, float(value), str(value)))
    if dice < 0.6:
        return rng.choice(_NUMBERS)
    if dice < 0.65:
        return _DEEP.decode()[1:-1]
    if dice < 0.7:
        return [value]
    return deepcopy(rng.choice(_VALUES))


def cut_up(data: bytes, rng: random.Random) -> list[bytes]:
    """In pieces of any size, as a connection may bring it."""
    ends = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(8)))
    return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]
