"""What a tokenizer.json may ask for, checked before `tokenizers` reads it.

That library trusts the file: a template of many ids, or replacements that each make a text longer, take all memory when
a text is encoded, and Rust ends the process where Python would raise. The parts that could are small and are read here;
the vocabulary is passed over. A step is told by its fields and not by its type, lest the two readers disagree.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

import msgspec

from hotloop.core.structs import compiled

MAX_BYTES = 256 << 20
MAX_STEPS = 256
MAX_ADDED_IDS = 256
MAX_GROWTH = 64
"""What the steps may make of one character."""

_CHARSMAP = "precompiled_charsmap"
_UNIT_BYTES = 4
Step = Mapping[str, Any]


@compiled
class _Parts(msgspec.Struct):
    normalizer: msgspec.Raw = msgspec.Raw(b"null")
    pre_tokenizer: msgspec.Raw = msgspec.Raw(b"null")
    post_processor: msgspec.Raw = msgspec.Raw(b"null")


def check_tokenizer(data: bytes) -> None:
    """Raises ValueError where the file asks for more than any tokenizer does, or is no JSON."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data)} bytes; at most {MAX_BYTES} are read")
    try:
        parts = msgspec.json.decode(data, type=_Parts)
        named = {name: list(_steps(_decode(getattr(parts, name)))) for name in _Parts.__struct_fields__}
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    for name, steps in named.items():
        if len(steps) > MAX_STEPS:
            raise ValueError(f"the {name} has {len(steps)} steps; at most {MAX_STEPS} are read")
    if (growth := _growth(named["normalizer"])) > MAX_GROWTH:
        raise ValueError(f"the normalizer makes {growth} characters of one; at most {MAX_GROWTH} are read")
    if (num_ids := sum(map(_num_added, named["post_processor"]))) > MAX_ADDED_IDS:
        raise ValueError(f"the post_processor adds {num_ids} ids to a text; at most {MAX_ADDED_IDS} are read")


def _decode(part: msgspec.Raw) -> Any:
    return json.loads(bytes(part), object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields := dict(pairs)) < len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _steps(part: Any) -> Iterator[Step]:
    """The objects within, in the order in which they are applied, that are not made of others."""
    if isinstance(part, list):
        for each in part:
            yield from _steps(each)
    elif isinstance(part, dict):
        inside = [part[key] for key in ("normalizers", "pretokenizers", "processors") if key in part]
        yield from _steps(inside) if inside else (part,)


def _growth(steps: list[Step]) -> int:
    """How many characters one may become."""
    size = 1
    for step in steps:
        if isinstance(content := step.get("content"), str):
            size *= _factor(step.get("pattern"), content)
        if isinstance(prepend := step.get("prepend"), str):
            size += len(prepend)
        if _CHARSMAP in step:
            size *= _longest_replacement(step[_CHARSMAP])
        if step.get("type") == "ByteLevel":
            size *= 4  # a character for each byte
    return size


def _factor(pattern: Any, content: str) -> int:
    """What a replacement makes of one character; one by a pattern may be put wherever it matches nothing."""
    text = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1, ceil(len(content) / len(text))) if text else 1 + len(content)


def _longest_replacement(charsmap: Any) -> int:
    """SentencePiece's table: the size of a trie, the trie, and what is put for each entry, each with a zero behind."""
    data = base64.b64decode(charsmap, validate=True)
    trie_bytes = int.from_bytes(data[:_UNIT_BYTES], "little")
    if not trie_bytes or trie_bytes % _UNIT_BYTES or trie_bytes + _UNIT_BYTES > len(data):
        raise ValueError("the precompiled_charsmap is damaged")
    return max(len(each.decode("utf-8", "replace")) for each in data[_UNIT_BYTES + trie_bytes :].split(b"\0")) or 1


def _num_added(step: Step) -> int:
    pieces, tokens = step.get("single", ()), step.get("special_tokens", {})
    longest = max((len(token["ids"]) for token in tokens.values()), default=0)
    return longest * sum("SpecialToken" in piece for piece in pieces)
