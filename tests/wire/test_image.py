"""How large pictures are, from bytes that nobody vouches for."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.wire.image import image_size

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\x00\x00\x00"
GIF = b"GIF89a" + struct.pack("<HH", 640, 480) + b"\0\0\0"
EXIF = b"\xff\xe1" + struct.pack(">H", 60_002) + b"x" * 60_000
SIZE = struct.pack(">HBHHB", 17, 8, 480, 640, 3)
JPEG = b"\xff\xd8" + EXIF + b"\xff\xff\xc2" + SIZE + b"\0" * 9
VP8X = b"RIFF\0\0\0\0WEBPVP8X" + b"\x0a\0\0\0" + b"\0" * 4 + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")
VP8L = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 639 | 479 << 14) + b"\0" * 8
VP8 = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 640, 480)


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("data", [PNG, GIF, JPEG, VP8X, VP8L, VP8], ids=["png", "gif", "jpeg", "vp8x", "vp8l", "vp8"])
def test_sizes(data: bytes) -> None:
    assert image_size(url(data)) == (640, 480)
    assert image_size(url(data + b"\0" * 300_000)) == (640, 480)


@pytest.mark.parametrize(
    "given_url",
    [
        "https://x/a.png",
        "data:image/png;base64,",
        "data:image/png;base64,!!!!",
        "data:image/png,plain",
        "data:;base64,A",
        url(PNG[:20]),
        url(PNG[:16] + b"\0" * 8),
        url(PNG[:16] + b"\xff" * 8),
        url(b"\xff\xd8" + b"\xff" * 1_000_000),
        url(b"\xff\xd8\xff\xe1\0\0" * 50_000),
        url(b"\xff\xd8\xff\xe1\xff\xff"),
        "data:" + ";" * 1_000_000,
    ],
    ids=range(12),
)
def test_what_has_no_size(given_url: str) -> None:
    assert image_size(given_url) is None


@given(st.sampled_from([PNG, GIF, JPEG[:40], b"\xff\xd8", VP8X, VP8L, VP8]), st.binary(max_size=40), st.integers(0, 40))
def test_any_bytes(head: bytes, rest: bytes, end: int) -> None:
    for given_url in (url(head[:end] + rest), "data:image/png;base64," + (head[:end] + rest).decode("latin-1")):
        size = image_size(given_url)
        assert size is None or all(1 <= side <= 1_000_000 for side in size)
