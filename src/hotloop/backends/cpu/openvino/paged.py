"""Batches on any CPU, by OpenVINO's own paged attention, in bf16 or exactly in float32.

The paged form of a graph cannot be saved (its operation is an extension), so it is made anew at each start.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from hotloop.backends.backend import Batch
from hotloop.backends.cpu.base import CpuBackend, describe_kv
from hotloop.backends.cpu.experts import open_experts
from hotloop.backends.cpu.openvino.graph import EXPERTS_PLACEHOLDER, DecoderGraph, PagedStyle, gather_logit_rows
from hotloop.backends.cpu.openvino.placeholder import KernelOp, fill_placeholders, release
from hotloop.backends.cpu.openvino.store import compile_graph, cpu_property, infer, load_graph
from hotloop.backends.host import HostCopy
from hotloop.core.config import KvPrecision, Precision, WeightFormat
from hotloop.core.errors import ConfigError
from hotloop.models.model import Model


class PagedBackend(CpuBackend):
    """The KV blocks are tensors the plugin writes in place."""

    def __init__(
        self,
        model: Model,
        kv_bytes: int,
        *,
        weight_format: WeightFormat,
        precision: Precision,
        kv_precision: KvPrecision,
    ) -> None:
        assert not (model.spec.windows or model.spec.has_sinks), "our own attention is for these"
        inference, kv_type = _precisions(kv_precision, precision)
        decoder = DecoderGraph(model.spec, model.weights, weight_format, PagedStyle(model.spec, model.weights))
        graph = load_graph(model, f"paged-{weight_format}", decoder.build)
        paged_attention_transformation(graph)
        self._nodes: list[KernelOp] = []
        if model.spec.experts:
            experts = open_experts(model, weight_format, "exact" if inference == "f32" else "fast")
            fill_placeholders(graph, EXPERTS_PLACEHOLDER, experts.run, model.spec.hidden_size, self._nodes)
        gather_logit_rows(graph)
        options = {"INFERENCE_PRECISION_HINT": inference, "KV_CACHE_PRECISION": kv_type}
        if inference == "f32":
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
        compiled = compile_graph(graph, options)
        self._request = compiled.create_infer_request()
        ports = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
        block_bytes = sum(int(np.prod(_block_shape(port))) * port.get_element_type().size for port in ports)
        kv_layout = describe_kv(model, f"openvino {ov.__version__}", weight_format, inference, kv_type)
        super().__init__(model, kv_bytes, block_bytes, kv_layout)
        self._caches: list[NDArray[np.uint8]] = []  # [blocks, bytes], for each layer its keys and its values
        for port in ports:
            shape = ov.Shape([self.num_blocks, *_block_shape(port)])
            tensor = ov.Tensor(port.get_element_type(), shape)
            self._request.set_tensor(port.get_any_name(), tensor)
            self._caches.append(tensor.data.reshape(self.num_blocks, -1).view(np.uint8))

    def run(self, batch: Batch) -> NDArray[np.float32]:
        feed: dict[str, NDArray[Any]] = {
            "input_ids": batch.token_ids,
            "position_ids": batch.positions,
            "past_lens": batch.past_lens,
            "subsequence_begins": batch.query_starts,
            "block_indices": batch.block_ids,
            "block_indices_begins": batch.block_begins,
            "max_context_len": (batch.past_lens + np.diff(batch.query_starts)).max(),
            "logit_rows": batch.logit_rows,
        }
        return infer(self._request, feed, self.vocab_size)

    def read_blocks(self, block_ids: Sequence[int]) -> HostCopy:
        return HostCopy(np.concatenate([cache[np.array(block_ids)].reshape(-1) for cache in self._caches]).data)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        sizes = [len(block_ids) * cache.shape[1] for cache in self._caches]
        pieces = np.split(np.frombuffer(data, np.uint8), np.cumsum(sizes)[:-1])
        for cache, piece in zip(self._caches, pieces, strict=True):
            cache[np.array(block_ids)] = piece.reshape(len(block_ids), -1)

    def close(self) -> None:
        self._caches.clear()
        del self._request
        release(self._nodes)


def _block_shape(port: ov.Output) -> list[int]:
    return [int(str(size)) for size in list(port.get_partial_shape())[1:]]


def _precisions(kv_precision: KvPrecision, precision: Precision) -> tuple[str, str]:
    """What is computed in, and what keys and values are stored in, as the plugin calls it."""
    is_quick = precision == "fast" and "BF16" in cpu_property("OPTIMIZATION_CAPABILITIES")
    if kv_precision == "f32" and is_quick:
        raise ConfigError("kv_precision f32 goes with precision exact: computing in bf16 gains nothing from it")
    if kv_precision == "auto":
        kv_precision = "bf16" if is_quick else "f32" if precision == "exact" else "f16"
    return "bf16" if is_quick else "f32", "u8" if kv_precision == "int8" else kv_precision
