"""What a Hugging Face folder says beside its weights: the tokenizer, which tokens end a turn, the chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from hotloop.core.errors import ModelError
from hotloop.models.safetensors import read_json
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer


def folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer: tokenizer.json is missing")
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exceptions
        raise ModelError(f"{path} cannot be read: {error}") from None
    inner.no_truncation()
    inner.no_padding()
    bos = _token(_optional(folder, "tokenizer_config.json"), "bos_token")
    bos_id = inner.token_to_id(bos) if bos else None
    try:
        return Tokenizer(
            inner, bos_id=bos_id, eos_ids=_eos_ids(folder, inner), wants_bos=inner.encode("").ids[:1] == [bos_id]
        )
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def folder_template(folder: Path) -> ChatTemplate | None:
    """The template in chat_template.jinja or, as it used to be, in tokenizer_config.json; a base model has none."""
    config = _optional(folder, "tokenizer_config.json")
    path = folder / "chat_template.jinja"
    source = config.get("chat_template")
    if isinstance(source, list):  # several with names, of which one is called default
        named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
        source = named.get("default")
    try:
        source = path.read_text("utf-8") if path.is_file() else source
        if not isinstance(source, str):
            return None
        return ChatTemplate(source, bos_token=_token(config, "bos_token"), eos_token=_token(config, "eos_token"))
    except (OSError, UnicodeDecodeError, ModelError) as error:
        raise ModelError(f"{folder}: {error}") from None


def _optional(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / name) if (folder / name).is_file() else {}


def _token(config: Mapping[str, Any], key: str) -> str:
    """A token's text, which is written bare or as the content of an object."""
    value = config.get(key)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _eos_ids(folder: Path, inner: tokenizers.Tokenizer) -> set[int]:
    """Every id that any of the folder's files calls an end."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        given = _optional(folder, name).get("eos_token_id")
        ids |= {item for item in (given if isinstance(given, list) else [given]) if isinstance(item, int)}
    eos = _token(_optional(folder, "tokenizer_config.json"), "eos_token")
    eos_id = inner.token_to_id(eos) if eos else None
    return ids if eos_id is None else ids | {eos_id}
