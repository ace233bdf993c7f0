"""Loads what an engine consists of, by a model's name: the model, its backend and the drafter."""

import logging
from collections.abc import Callable
from dataclasses import replace

from hotloop.backends.backend import Backend
from hotloop.backends.open import choose_device, describe_backend, open_backend
from hotloop.core.config import Device, EngineConfig, LoadFormat, Precision, WeightFormat, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.engine.drafting.drafter import Drafter, EitherDrafter
from hotloop.engine.drafting.history import PastDrafter
from hotloop.engine.drafting.model import MIN_MATCH, ModelDrafter, check_same_vocabulary
from hotloop.models.model import Model, load_model

log = logging.getLogger(__name__)

_DRAFT_STEP_TOKENS = 512  # a draft model prefills a bounded piece at a time


def open_parts(
    name: str,
    config: EngineConfig,
    *,
    weights: WeightFormat,
    precision: Precision,
    device: Device,
    load_format: LoadFormat,
    meanwhile: Callable[[], object],
) -> tuple[Model, Backend, Drafter | None, str]:
    """A model by name or path, on this machine's GPU if it has one, with a draft model if one was asked for, and a note
    about the device. `meanwhile` is called while weights are made ready, which other threads do.
    """
    choice = choose_device(device, config.gpus)
    model = load_model(name, load_format=load_format)
    for note in model.notes:
        log.warning("%s: %s", model.name, note)
    draft = None
    if config.draft_model:
        draft = load_model(config.draft_model, load_format=load_format)
        check_same_vocabulary(model.tokenizer, draft.tokenizer)
        if draft.spec.linear:
            raise ConfigError(f"draft_model {draft.name} is a hybrid model, which cannot draft yet")

    past: list[PastDrafter] = []

    def make_ready() -> None:
        model.tokenizer.encode("")  # which may yet have to be made
        if config.drafts:
            num_tokens, min_match = config.draft_history_tokens, MIN_MATCH if draft else 1
            past.append(PastDrafter(model.tokenizer, model.spec.vocab_size, num_tokens, min_match=min_match))
        meanwhile()

    backend = open_backend(
        model,
        config,
        device=choice.device,
        weight_format=weights,
        precision=precision,
        draft_spec=draft.spec if draft else None,
        meanwhile=make_ready,
    )
    note = describe_backend(choice, model, weights, precision)
    if not draft:
        return model, backend, past[0] if past else None, note
    try:
        own = replace(
            config,
            kv_memory=f"{parse_bytes(config.kv_memory) // 4}B",
            gpus=1,
            max_step_tokens=_DRAFT_STEP_TOKENS,
            draft_model=None,
            host_kv="off",
        )
        num_tokens = backend.num_blocks * backend.block_size
        draft_backend = open_backend(
            draft, own, device=choice.device, weight_format=weights, precision=precision, kv_tokens=num_tokens
        )
    except BaseException:
        backend.close()
        raise
    drafter = ModelDrafter(draft_backend, model.tokenizer)
    return model, backend, EitherDrafter(past[0], drafter) if past else drafter, note
