"""How large a picture is, from the first bytes of a PNG, JPEG, GIF or WebP.

The bytes are a stranger's: imagesize reads only a bounded head of them, and of its formats only those without nested
boxes or XML.
"""

import binascii
import io
import re

import imagesize

_HEAD_CHARS = 1 << 18  # of base64; a JPEG may have that much before its size
_MAX_PIXELS = 1_000_000  # on a side: more is a mistake, or a joke
_DATA_URL = re.compile(r"data:[^,;]{0,100}(?:;[^,;]{0,100}){0,8};base64,", re.IGNORECASE)
_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"GIF87a", b"GIF89a", b"RIFF")


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
    width, height = imagesize.get(io.BytesIO(head), exif_rotation=False) if head.startswith(_MAGIC) else (0, 0)
    return (width, height) if 0 < width <= _MAX_PIXELS and 0 < height <= _MAX_PIXELS else None
