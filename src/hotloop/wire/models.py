"""The models that are served, as OpenAI's clients and Anthropic's list them. They ask at the same address."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hotloop.wire.field import Json, present

VERSION_HEADER = "anthropic-version"
"""Anthropic's clients all send it, and no others do."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    id: str
    created_at: int = 0
    max_context: int | None = None


def render_models(models: Sequence[ServedModel], *, for_anthropic: bool) -> Json:
    data = [render_model(model, for_anthropic=for_anthropic) for model in models]
    if not for_anthropic:
        return {"object": "list", "data": data}
    first_id, last_id = (models[0].id, models[-1].id) if models else (None, None)
    return {"data": data, "first_id": first_id, "last_id": last_id, "has_more": False}


def render_model(model: ServedModel, *, for_anthropic: bool) -> Json:
    if not for_anthropic:
        about = {"id": model.id, "object": "model", "created": model.created_at, "owned_by": "hotloop"}
        return {**about, **present(max_model_len=model.max_context)}
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.max_context,
        "max_tokens": model.max_context,
    }
