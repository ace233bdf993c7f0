"""Batches on a CPU with AMX: our own kernel for attention, bf16 KV in the layout of AMX tiles.

The graph is compiled twice, over the same KV: in float32 for steps of a few tokens, which only wait for the weights to
arrive from memory, and in bf16 for longer ones, where AMX does the arithmetic. A small model's int8 weights are held in
bf16 too for the longer ones, since unpacking them every time takes as long as half the arithmetic.
"""

from hotloop.backends.openvino.attention import Kernel
from hotloop.backends.openvino.gap import Form, GapBackend
from hotloop.backends.openvino.store import describe_kv
from hotloop.core.config import WeightFormat
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec

MAX_UNPACKED_BYTES = 512 << 20


class AmxBackend(GapBackend):
    def __init__(self, model: Model, kv_bytes: int, kernel: Kernel, *, weight_format: WeightFormat) -> None:
        long = long_format(model.spec, weight_format)
        super().__init__(
            model,
            kv_bytes,
            kernel,
            kv_layout=describe_kv(model, "amx", weight_format, long, kernel.version),
            short=Form(weight_format, {"INFERENCE_PRECISION_HINT": "f32"}),
            long=Form(long, {"INFERENCE_PRECISION_HINT": "bf16"}),
        )


def long_format(spec: ModelSpec, weight_format: WeightFormat) -> WeightFormat:
    """How weights are held for long steps. int4 was asked for to save memory, so it is taken at its word."""
    if weight_format != "int8":
        return weight_format
    attention = (2 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    per_layer = spec.hidden_size * (attention + 3 * spec.intermediate_size)
    num_weights = spec.num_layers * per_layer + 2 * spec.vocab_size * spec.hidden_size
    return "bf16" if 2 * num_weights <= MAX_UNPACKED_BYTES else weight_format
