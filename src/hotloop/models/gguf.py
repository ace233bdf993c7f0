"""A model in a GGUF file: its spec from the metadata, its weights under our names.

Refuses what it would compute wrongly: other architectures, experts, shards, rotary scaling it does not know.
"""

from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError
from hotloop.models.gguf_file import GgufFile, widen
from hotloop.models.layout import check_spec, check_tensors, tensor_places
from hotloop.models.rope import scaling_from_divisors
from hotloop.models.spec import Family, ModelSpec, Stored

_ROPE_DIVISORS = "rope_freqs.weight"


class GgufWeights:
    """The tensors of one file, read one at a time."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        check_spec(file.path, spec, len(file.tensors))
        places = list(tensor_places(spec))
        found = {name: tensor.shape for name, tensor in file.tensors.items()}
        check_tensors(file.path, {place.gguf_name: place.shape for place in places}, found, [_ROPE_DIVISORS])
        self._file = file
        self._gguf_names = {place.name: place.gguf_name for place in places}
        # Only the llama architecture is stored with the rotary halves of each head interleaved.
        self._interleaved = {"q": spec.num_heads, "k": spec.num_kv_heads} if spec.family == "llama" else {}

    def read(self, name: str) -> NDArray[np.float32]:
        return widen(self.stored(name))

    def stored(self, name: str) -> Stored:
        found = self._file.tensors[self._gguf_names[name]].stored()
        num_heads = self._interleaved.get(name.rpartition(".")[2].removesuffix("_bias"))
        if not num_heads:
            return found
        # Rows of each head from a0 b0 a1 b1 … to a0 a1 … b0 b1 …; a bias has a row for each number.
        row_bytes = found.data.size // found.shape[0]
        pairs = found.data.reshape(num_heads, -1, 2, row_bytes).swapaxes(1, 2)
        return replace(found, data=np.ascontiguousarray(pairs).reshape(found.data.shape))


def gguf_spec(file: GgufFile) -> ModelSpec:
    """What the metadata says the model is."""
    family = _family(file)
    _refuse_unsupported(file, family)
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise ModelError(f"{file.path}: the tensor token_embd.weight is missing")
    num_heads = file.get(f"{family}.attention.head_count", int)
    hidden_size = file.get(f"{family}.embedding_length", int)
    head_dim = file.get(f"{family}.attention.key_length", int, hidden_size // max(num_heads, 1))
    rope_theta = file.get(f"{family}.rope.freq_base", float, 10_000.0)
    if file.get(f"{family}.rope.dimension_count", int, head_dim) != head_dim:
        raise ModelError(f"{file.path}: rotary positions over only a part of each head are not supported")
    if file.get(f"{family}.attention.value_length", int, head_dim) != head_dim:
        raise ModelError(f"{file.path}: keys and values of different widths are not supported")
    max_context = file.get(f"{family}.context_length", int)
    window = file.get(f"{family}.attention.sliding_window", int, 0) or max_context
    scaling = None
    if _ROPE_DIVISORS in file.tensors:
        divisors = widen(file.tensors[_ROPE_DIVISORS].stored())
        scaling = scaling_from_divisors(divisors, rope_theta, head_dim, str(file.path))
    return ModelSpec(
        family=family,
        num_layers=file.get(f"{family}.block_count", int),
        hidden_size=hidden_size,
        intermediate_size=file.get(f"{family}.feed_forward_length", int),
        num_heads=num_heads,
        num_kv_heads=file.get(f"{family}.attention.head_count_kv", int, num_heads),
        head_dim=head_dim,
        vocab_size=embed.shape[0],
        max_context=min(window, max_context),
        rms_eps=file.get(f"{family}.attention.layer_norm_rms_epsilon", float),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        has_tied_head="output.weight" not in file.tensors,
        has_qkv_bias=family == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        has_qk_norm=family == "qwen3",
        window=window if window < max_context else None,
    )


def _family(file: GgufFile) -> Family:
    architecture = file.get("general.architecture", str)
    families: dict[str, Family] = {family: family for family in get_args(Family)}
    if architecture not in families:
        only = ", ".join(families)
        raise ModelError(f"{file.path}: the architecture {architecture!r} is not supported (only {only} are)")
    return families[architecture]


def _refuse_unsupported(file: GgufFile, family: Family) -> None:
    if file.get("split.count", int, 1) > 1:
        raise ModelError(f"{file.path} is one shard of several: join them into one file first")
    if file.get(f"{family}.expert_count", int, 0) > 0:
        raise ModelError(f"{file.path}: {family} with mixture-of-experts layers is not supported: dense models are")
    scaling = file.get(f"{family}.rope.scaling.type", str, "none")
    is_stretched = scaling != "none" and file.get(f"{family}.rope.scaling.factor", float, 1.0) != 1.0
    if is_stretched or file.get(f"{family}.rope.scale_linear", float, 1.0) != 1.0:
        raise ModelError(f"{file.path}: rotary scaling of type {scaling!r} is not supported (only llama3 is)")
