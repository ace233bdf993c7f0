"""How large a picture is, from the first bytes of a PNG, JPEG, GIF or WebP.

The bytes are a stranger's: only the head is decoded, every read is inside it, and what makes no sense has no size.
"""

import binascii
import re

_HEAD_CHARS = 1 << 18  # of base64; a JPEG may have that much before its size
_MAX_PIXELS = 1_000_000  # on a side: more is a mistake, or a joke
_DATA_URL = re.compile(r"data:[^,;]{0,100}(?:;[^,;]{0,100}){0,8};base64,", re.IGNORECASE)
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length


def image_size(url: str) -> tuple[int, int] | None:
    """Width and height of the picture in a data URL; None if it is another address, or no picture known here."""
    found = _DATA_URL.match(url)
    if not found:
        return None
    text = url[found.end() : found.end() + _HEAD_CHARS]
    try:
        head = binascii.a2b_base64(text[: len(text) - len(text) % 4])
    except ValueError:
        return None
    size = _read_size(head)
    return size if size and all(0 < side <= _MAX_PIXELS for side in size) else None


def _read_size(head: bytes) -> tuple[int, int] | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR" and len(head) >= 24:
        return _big(head, 16, 4), _big(head, 20, 4)
    if head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:
        return _little(head, 6, 2), _little(head, 8, 2)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP" and len(head) >= 30:
        return _read_webp(head)
    return _read_jpeg(head) if head.startswith(b"\xff\xd8") else None


def _read_webp(head: bytes) -> tuple[int, int] | None:
    match head[12:16]:
        case b"VP8X":
            return _little(head, 24, 3) + 1, _little(head, 27, 3) + 1
        case b"VP8L" if head[20] == 0x2F:
            bits = _little(head, 21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if head[23:26] == b"\x9d\x01\x2a":
            return _little(head, 26, 2) & 0x3FFF, _little(head, 28, 2) & 0x3FFF
    return None


def _read_jpeg(head: bytes) -> tuple[int, int] | None:
    """Segments follow each other, FF and what it is, then mostly a length; one of them has the size."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        kind = head[at + 1]
        if kind in _JPEG_SIZES:
            return _big(head, at + 7, 2), _big(head, at + 5, 2)
        if kind == 0xFF or kind in _JPEG_BARE:
            at += 1 if kind == 0xFF else 2
        elif (length := _big(head, at + 2, 2)) >= 2:
            at += 2 + length
        else:
            return None
    return None


def _big(head: bytes, at: int, size: int) -> int:
    return int.from_bytes(head[at : at + size], "big")


def _little(head: bytes, at: int, size: int) -> int:
    return int.from_bytes(head[at : at + size], "little")
