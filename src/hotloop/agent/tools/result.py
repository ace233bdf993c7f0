"""What a tool gave, as the model reads it: text as it is, anything else as JSON. Bounded, since a tool's result is
hostile until proven otherwise: it may be megabytes, bytes that are no text, or something JSON has no word for.
"""

from typing import Any

import pydantic_core

MAX_CHARS = 100_000
"""Most characters of one result that a model is given; more is cut in the middle, and said so."""


def render_result(value: Any) -> str:
    return cut(_render(value))


def cut(text: str, max_chars: int = MAX_CHARS) -> str:
    """A text that is too long, without its middle; the beginning and the end usually say most."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _render(value: Any) -> str:
    if value is None:
        return "done"
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # lone surrogates cannot be sent
    data = pydantic_core.to_json(value, fallback=str, bytes_mode="utf8", inf_nan_mode="constants")
    return data.decode("utf-8", "replace")
