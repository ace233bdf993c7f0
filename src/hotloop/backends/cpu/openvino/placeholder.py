"""Batches on a CPU with hotloop's attention: OpenVINO for the matmuls, a kernel in each layer's placeholder."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hotloop.backends.backend import Batch, prompt_batch
from hotloop.backends.cpu.attention import BLOCK_SIZE, Kernel
from hotloop.backends.cpu.base import KernelBackend, describe_kv
from hotloop.backends.cpu.delta import DeltaNet, open_delta
from hotloop.backends.cpu.experts import open_experts
from hotloop.backends.cpu.openvino.graph import (
    EXPERTS_PLACEHOLDER,
    LINEAR_PLACEHOLDER,
    PLACEHOLDER,
    DecoderGraph,
    PlaceholderStyle,
    divide_by_roots,
    gather_logit_rows,
)
from hotloop.backends.cpu.openvino.store import compile_graph, infer, load_graph
from hotloop.backends.host import HostCopy
from hotloop.core.config import Precision, WeightFormat
from hotloop.models.hybrid import HybridWeights
from hotloop.models.model import Model

_WHOLE_ROWS = str(2**64 - 1)
_WARM_UP = (1, 16)
"""Tokens of steps that are run at once: the plugin makes its kernels when it first meets a shape."""

Run = Callable[[int, NDArray[np.float32], NDArray[np.float32]], None]
"""What fills the placeholder of a layer: (layer, what comes in, room for what comes out)."""


class PortableBackend(KernelBackend):
    """On any CPU, with matmuls as ARM does them best.

    Every row is computed alike whatever else is in the step, so in float32 (`exact`) batching, chunking and caching
    change no bit. `fast` leaves int8 and int4 weights packed and rounds the other side of a matmul to int8, a row at a
    time: a quarter of the memory, and nearly four times the speed where a step has one token. The plugin's own choice,
    float16, is half as quick for such steps, and numbers can outgrow it.
    """

    def __init__(
        self,
        model: Model,
        kv_bytes: int,
        kernel: Kernel,
        *,
        weight_format: WeightFormat,
        precision: Precision,
        drops_windows: bool = False,
    ) -> None:
        spec = model.spec
        how = (weight_format, precision, kernel.name)
        layout = describe_kv(model, f"openvino {ov.__version__}", *how)
        if spec.linear:
            model = replace(model, weights=HybridWeights(model.weights, spec))
        super().__init__(model, kv_bytes, kernel, kv_layout=layout, drops_windows=drops_windows)
        self._linear = DeltaNet(spec, model.weights, self.num_states, open_delta(spec.linear)) if spec.linear else None
        self._experts = open_experts(model, weight_format, precision) if spec.experts else None
        self._nodes: list[KernelOp] = []
        self._request = self._compile(model, weight_format, precision)
        for num_tokens in _WARM_UP:
            self.run(prompt_batch(num_tokens, BLOCK_SIZE))

    def run(self, batch: Batch) -> NDArray[np.float32]:
        self.plan(batch)
        if self._linear:
            self._linear.plan(batch)
        return infer(self._request, {"input_ids": batch.token_ids, "logit_rows": batch.logit_rows}, self.vocab_size)

    def read_state(self, slot: int) -> HostCopy:
        assert self._linear is not None
        return HostCopy(self._linear.read(slot).data)

    def write_state(self, slot: int, data: memoryview) -> None:
        assert self._linear is not None
        self._linear.write(slot, data)

    def close(self) -> None:
        del self._request
        release(self._nodes)
        super().close()
        if self._linear:
            self._linear.close()
        self._experts = None

    def _compile(self, model: Model, weight_format: WeightFormat, precision: Precision) -> ov.InferRequest:
        decoder = DecoderGraph(model.spec, model.weights, weight_format, PlaceholderStyle(model.spec))
        graph = load_graph(model, f"native-{weight_format}", decoder.build)
        fill_placeholders(graph, PLACEHOLDER, self._attend, model.spec.mixed_size, self._nodes)
        if self._experts:
            fill_placeholders(graph, EXPERTS_PLACEHOLDER, self._experts.run, model.spec.hidden_size, self._nodes)
        if self._linear and model.spec.linear:
            fill_placeholders(graph, LINEAR_PLACEHOLDER, self._linear.run, model.spec.linear.value_size, self._nodes)
        gather_logit_rows(graph)
        divide_by_roots(graph)
        options = {
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0" if precision == "exact" else _WHOLE_ROWS,
        }
        return compile_graph(graph, options).create_infer_request()

    def _attend(self, index: int, qkv: NDArray[np.float32], output: NDArray[np.float32]) -> None:
        """`index` counts the layers with KV."""
        attention, number = self._places[index]
        attention.run(number, qkv, output)


def fill_placeholders(graph: ov.Model, prefix: str, run: Run, width: int, made: "list[KernelOp]") -> None:
    """Put a kernel where the graph left room for it. All nodes that are ever made for it are added to `made`."""
    for node in graph.get_ordered_ops():
        if node.get_friendly_name().startswith(prefix):
            layer = int(node.get_friendly_name().removeprefix(prefix))
            filling = KernelOp(node.input_value(0), run, layer, width, made)
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(filling.output(0))
    graph.validate_nodes_and_infer_types()


def release(made: "list[KernelOp]") -> None:
    """Cut nodes off their graphs, once nothing computes with them, so that these and their weights are freed."""
    while made:
        made.pop().release()


class KernelOp(ov.Op):  # type: ignore[misc]
    """A kernel as a node of the graph: [.., tokens, ..] -> the same, `width` wide.

    OpenVINO never frees a node that is written in Python, nor what it is connected to, and its plugin asks for a new
    one a layer and step, only to see the shape of its output. Once the graph is compiled, it is given the same again.
    """

    class_type_info = ov.DiscreteTypeInfo("Kernel", "hotloop")

    def __init__(self, x: ov.Output, run: Run, layer: int, width: int, made: "list[KernelOp]") -> None:
        super().__init__(self)
        self._run, self._layer, self._width, self._made = run, layer, width, made
        self._has_run = False
        self._double: KernelOp | None = None
        self.set_arguments([x])
        self.constructor_validate_and_infer_types()
        made.append(self)

    def release(self) -> None:
        self.set_arguments([])
        self._double = None
        del self._run

    def validate_and_infer_types(self) -> None:
        outer = list(self.get_input_partial_shape(0))[:-1]
        self.set_output_type(0, ov.Type.f32, ov.PartialShape([*outer, self._width]))

    def clone_with_new_inputs(self, inputs: list[ov.Output]) -> "KernelOp":
        if self._double is not None:
            self._double.set_arguments(inputs)
            self._double.validate_and_infer_types()
            return self._double
        clone = KernelOp(inputs[0], self._run, self._layer, self._width, self._made)
        if self._has_run:
            self._double = clone
        return clone

    def get_type_info(self) -> ov.DiscreteTypeInfo:
        return self.class_type_info

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: list[ov.Tensor], inputs: list[ov.Tensor]) -> bool:
        self._has_run = True
        x, output = inputs[0].data, outputs[0].data
        self._run(self._layer, x.reshape(-1, x.shape[-1]), output.reshape(-1, self._width))
        return True
