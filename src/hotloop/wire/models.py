"""The models that are served, as OpenAI's clients and Anthropic's list them. They ask at the same address."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hotloop.wire.field import Json, present

WINDOW_KEYS = ("max_model_len", "max_input_tokens", "context_length", "context_window", "n_ctx")
"""Where a list of models tells the context window: hotloop, vLLM and SGLang; Anthropic; OpenRouter; Groq; llama.cpp."""
_MAX_CREATED_AT = 253_402_300_799  # the last second that has a date of four digits


@dataclass(frozen=True, slots=True)
class ServedModel:
    id: str
    created_at: int = 0
    """Seconds since 1970; 0 where it is not known, as Anthropic has it."""
    max_context: int | None = None
    rest: Mapping[str, Any] = field(default_factory=dict)
    """What else a server says of it, in OpenAI's shape."""


def parse_model(name: str, listed: Json) -> ServedModel:
    """What another server lists, as it is served here under a name. What makes no sense counts as not said."""
    created = listed.get("created")
    created_at = created if type(created) is int and 0 < created <= _MAX_CREATED_AT else 0
    return ServedModel(name, created_at, read_window(listed), listed)


def read_window(listed: Json) -> int | None:
    """How many tokens a model's context has, by a server's list; llama.cpp says it in a part of its own."""
    meta = listed.get("meta")
    said = {**listed, **(meta if isinstance(meta, dict) else {})}
    windows = (said.get(key) for key in WINDOW_KEYS)
    return next((window for window in windows if type(window) is int and window > 0), None)


def merge_models(models: Iterable[ServedModel]) -> list[ServedModel]:
    """Each model once, by name, with all that is said of it anywhere: since its first date, and with the context that
    it has everywhere."""
    merged: dict[str, ServedModel] = {}
    for model in models:
        merged[model.id] = _merge(merged.get(model.id, model), model)
    return [merged[name] for name in sorted(merged)]


def _merge(one: ServedModel, other: ServedModel) -> ServedModel:
    dates = [date for date in (one.created_at, other.created_at) if date]
    contexts = [each for each in (one.max_context, other.max_context) if each]
    rest = {**other.rest, **one.rest}
    return ServedModel(one.id, min(dates, default=0), min(contexts, default=None), rest)


def render_models(models: Sequence[ServedModel], *, for_anthropic: bool) -> Json:
    data = [render_model(model, for_anthropic=for_anthropic) for model in models]
    if not for_anthropic:
        return {"object": "list", "data": data}
    first_id, last_id = (models[0].id, models[-1].id) if models else (None, None)
    return {"data": data, "first_id": first_id, "last_id": last_id, "has_more": False}


def render_model(model: ServedModel, *, for_anthropic: bool) -> Json:
    if not for_anthropic:
        about = {"id": model.id, "object": "model", "created": model.created_at, "owned_by": "hotloop"}
        own = {"id": model.id, "created": model.created_at}
        return {**about, **model.rest, **own, **present(max_model_len=model.max_context)}
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.max_context,
        "max_tokens": model.max_context,
    }
