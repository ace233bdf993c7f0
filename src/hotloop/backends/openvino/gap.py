"""Batches on a CPU whose attention is ours: OpenVINO for the matmuls, a kernel in the gap each layer's graph leaves.

`AmxBackend` and `PortableBackend` differ in the kernel and in how the graph is compiled, and in nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hotloop.backends.backend import Batch, HostMemory
from hotloop.backends.host import HostCopy, HostFlight
from hotloop.backends.openvino.attention import BLOCK_SIZE, Attention, Kernel
from hotloop.backends.openvino.graph import GAP, NativeStyle, build_graph, gather_wanted_rows
from hotloop.backends.openvino.store import check_num_blocks, compile_graph, failure, load_graph
from hotloop.backends.rotary import rotary_table
from hotloop.core.config import WeightFormat
from hotloop.models.memory import kv_token_bytes
from hotloop.models.model import Model

MAX_SHORT_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Form:
    """How a graph is compiled: what its weights are held in, the plugin's options, and what is rewritten for it."""

    weight_format: WeightFormat
    options: dict[str, str]
    adapt: Callable[[ov.Model], None] = lambda graph: None


class GapBackend:
    """The KV blocks are the kernel's memory, in its own layout."""

    depth = 1
    step_tokens = 512
    block_size = BLOCK_SIZE
    host_memory: HostMemory | None = None

    def __init__(
        self, model: Model, kv_bytes: int, kernel: Kernel, *, kv_layout: str, short: Form, long: Form | None = None
    ) -> None:
        """`long`: how the graph is compiled for steps of many tokens, if not as for those of a few."""
        self.vocab_size = model.spec.vocab_size
        self.max_context = model.spec.max_context
        self.kv_layout = kv_layout
        self.block_bytes = BLOCK_SIZE * kv_token_bytes(model.spec, kernel.item_bytes)
        self.num_blocks = kv_bytes // self.block_bytes
        check_num_blocks(self.num_blocks, model.name)
        angles = rotary_table(model.spec, min(self.max_context, self.num_blocks * BLOCK_SIZE))
        self._attention = kernel.create(model.spec, self.num_blocks, angles)
        if model.spec.has_qk_norm:
            for layer in range(model.spec.num_layers):
                norms = (model.weights.read(f"layers.{layer}.{name}") for name in ("q_norm", "k_norm"))
                self._attention.set_norms(layer, *norms)
        self._short = self._compile(model, short)
        self._long = self._compile(model, long) if long else self._short
        self._warm_up()

    def launch(self, batch: Batch) -> HostFlight:
        return HostFlight(lambda: self.run(batch))

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [wanted, vocabulary], valid until the next call."""
        request = self._short if len(batch.token_ids) <= MAX_SHORT_TOKENS else self._long
        self._attention.plan(batch)
        try:
            request.set_tensor("input_ids", ov.Tensor(batch.token_ids))
            request.set_tensor("wanted", ov.Tensor(batch.wanted))
            request.infer()
        except RuntimeError as error:
            raise failure("OpenVINO failed", error) from error
        logits: NDArray[np.float32] = request.get_output_tensor(0).data
        return logits.reshape(-1, self.vocab_size)

    def read_blocks(self, block_ids: Sequence[int]) -> HostCopy:
        return HostCopy(self._attention.kv.take(np.array(block_ids), axis=1).reshape(-1).data)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        kv = self._attention.kv
        kv[:, np.array(block_ids)] = np.frombuffer(data, np.uint8).reshape(len(kv), len(block_ids), -1)

    def close(self) -> None:
        del self._short, self._long
        self._attention.close()

    def _compile(self, model: Model, form: Form) -> ov.InferRequest:
        style = NativeStyle(model.spec)
        graph = load_graph(
            model,
            f"native-{form.weight_format}",
            lambda: build_graph(model.spec, model.weights, form.weight_format, style),
        )
        self._fill_gaps(graph, model.spec.num_heads * model.spec.head_dim)
        gather_wanted_rows(graph)
        form.adapt(graph)
        return compile_graph(graph, form.options).create_infer_request()

    def _fill_gaps(self, graph: ov.Model, width: int) -> None:
        """Put the kernel where the graph left room for attention."""
        for node in graph.get_ordered_ops():
            if node.get_friendly_name().startswith(GAP):
                layer = int(node.get_friendly_name().removeprefix(GAP))
                filling = _AttentionOp(node.input_value(0), self._attention, layer, width)
                for target in node.output(0).get_target_inputs():
                    target.replace_source_output(filling.output(0))
        graph.validate_nodes_and_infer_types()

    def _warm_up(self) -> None:
        """The plugin makes its kernels when it first meets a shape: better now than under the first request."""
        for num_tokens in (1, MAX_SHORT_TOKENS + 1):
            self.run(_first_tokens(num_tokens))


def _first_tokens(num_tokens: int) -> Batch:
    """A sequence of its own in the first block, whose KV whoever gets that block overwrites."""
    return Batch(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=np.arange(num_tokens),
        past_lens=np.zeros(1, np.int32),
        begins=np.array([0, num_tokens], np.int32),
        block_ids=np.zeros(1, np.int32),
        block_begins=np.array([0, 1], np.int32),
        wanted=np.array([num_tokens - 1]),
    )


class _AttentionOp(ov.Op):  # type: ignore[misc]
    """The kernel as a node of the graph: [tokens, q k v] -> [tokens, mixed heads].

    OpenVINO never frees a node that is written in Python, and its plugin asks for a new one a layer and step, only to
    see the shape of its output. Once the graph is compiled, it is given the same one again.
    """

    class_type_info = ov.DiscreteTypeInfo("Attention", "hotloop")

    def __init__(self, qkv: ov.Output, attention: Attention, layer: int, width: int) -> None:
        super().__init__(self)
        self._attention, self._layer, self._width = attention, layer, width
        self._has_run = False
        self._double: _AttentionOp | None = None
        self.set_arguments([qkv])
        self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        num_tokens = self.get_input_partial_shape(0)[0]
        self.set_output_type(0, ov.Type.f32, ov.PartialShape([num_tokens, self._width]))

    def clone_with_new_inputs(self, inputs: list[ov.Output]) -> "_AttentionOp":
        if self._double is not None:
            self._double.set_arguments(inputs)
            self._double.validate_and_infer_types()
            return self._double
        clone = _AttentionOp(inputs[0], self._attention, self._layer, self._width)
        if self._has_run:
            self._double = clone
        return clone

    def get_type_info(self) -> ov.DiscreteTypeInfo:
        return self.class_type_info

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: list[ov.Tensor], inputs: list[ov.Tensor]) -> bool:
        self._has_run = True
        self._attention.run(self._layer, inputs[0].data, outputs[0].data)
        return True
