"""Batches on a CPU that OpenVINO has no paged attention for: ours for any CPU, and the matmuls as ARM does them best.

Every row is computed alike whatever else is in the step, so `exact` holds: in float32, batching, chunking and caching
change no bit. `fast` leaves int8 and int4 weights packed and rounds the other side of a matmul to int8 as well, a row
at a time: a quarter of the memory, and nearly four times the speed of float32 where a step has one token. The plugin's
own choice would be float16, a tenth quicker for long steps, half as quick for short ones, and numbers can outgrow it.
"""

import numpy as np
import openvino as ov
import openvino.opset13 as op

from hotloop.backends.openvino.attention import Kernel, NumpyKernel
from hotloop.backends.openvino.gap import Form, GapBackend
from hotloop.backends.openvino.native import load_portable
from hotloop.backends.openvino.store import describe_kv
from hotloop.core.config import KvPrecision, Precision, WeightFormat
from hotloop.core.errors import ConfigError
from hotloop.models.model import Model

_WHOLE_ROWS = str(2**64 - 1)
_DTYPES: dict[KvPrecision, type[np.floating]] = {"f32": np.float32, "f16": np.float16}
_CPP_TYPES = {"f32": "float", "f16": "half"}


class PortableBackend(GapBackend):
    def __init__(
        self, model: Model, kv_bytes: int, kernel: Kernel, *, weight_format: WeightFormat, precision: Precision
    ) -> None:
        how = (weight_format, precision, f"{kernel.item_bytes} bytes", kernel.version)
        options = {
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0" if precision == "exact" else _WHOLE_ROWS,
        }
        form = Form(weight_format, options, divide_by_roots)
        super().__init__(model, kv_bytes, kernel, kv_layout=describe_kv(model, "portable", *how), short=form)


def find_kernel(kv_precision: KvPrecision, precision: Precision) -> Kernel:
    """Attention over keys and values of that precision: compiled, or in numpy where there is no compiler."""
    if kv_precision == "auto":
        kv_precision = "f32" if precision == "exact" else "f16"
    if kv_precision not in _DTYPES:
        raise ConfigError(f"kv_precision {kv_precision} is not for this CPU: it can be f16 or f32")
    kernel = NumpyKernel(_DTYPES[kv_precision])
    return load_portable(_CPP_TYPES[kv_precision], kernel.item_bytes) or kernel


def divide_by_roots(graph: ov.Model) -> None:
    """x * (1 / root) of a norm as x / root: an eighth of the time of a prompt.

    The plugin would compute the former, and the latter if it were not told to leave it, with a call of powf a number.
    The one for x86 fuses a norm as it is.
    """
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "Divide":
            [factor] = node.output(0).get_target_inputs()
            product = factor.get_node()
            quotient = op.divide(product.input_value(0), node.input_value(1))
            quotient.get_rt_info()["nonconvertable_divide_0"] = True
            for target in product.output(0).get_target_inputs():
                target.replace_source_output(quotient.output(0))
    graph.validate_nodes_and_infer_types()


def held_formats(weight_format: WeightFormat, precision: Precision) -> list[WeightFormat]:
    """What the plugin holds of the weights: the copy it computes with, and what it unpacked to make that."""
    if weight_format == "f32" or (precision == "fast" and weight_format in ("int8", "int4")):
        return [weight_format]
    return ["f32", "f32"]
