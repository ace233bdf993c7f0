"""Batches on an NVIDIA GPU: one stream, two steps in flight, CUDA graphs for all that decodes.

    host    | pack N+1 | launch N+1 | masks, sample N+1 | wait N ....| settle N | pack N+2 | ...
    device  | forward N ..................... | choose N | forward N+1 ............. | choose N+1 | ...

The tokens of step N stay on the device: step N+1 looks its rows up there, and the host hears of them while N+1 runs.
All that is enqueued here, copies of blocks included, is in the order of the one stream; only copies to host memory and
back have streams of their own (`hostmemory`).
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.backends.backend import Batch, HostMemory
from hotloop.backends.cuda.attention.decode import MAX_WHOLE_WINDOW, is_wide
from hotloop.backends.cuda.attention.flash import Flash, find_flash
from hotloop.backends.cuda.attention.latent_prefill import MAX_MADE_ITEMS
from hotloop.backends.cuda.decoder import MIN_SAVED_BYTES, Decoder
from hotloop.backends.cuda.failure import first_line, hardware
from hotloop.backends.cuda.flight import CudaCopy, CudaFlight, Wait
from hotloop.backends.cuda.graphs import MAX_LONG, MIXED_ROWS, Graphs, shapes_for
from hotloop.backends.cuda.layers.kernels import copy_blocks
from hotloop.backends.cuda.layers.mixing.deltas import scratch_width
from hotloop.backends.cuda.memory.hostmemory import has_host_memory, open_host_memory, ring_bytes
from hotloop.backends.cuda.memory.staging import Event, Staging
from hotloop.backends.cuda.parallel.ranks import ALONE, Group
from hotloop.backends.cuda.parallel.workers import Memory, Plan, Workers, memory_of
from hotloop.backends.cuda.quant.fp8 import E4M3, FP8_CAPABILITY, check_device
from hotloop.backends.cuda.sampling_table import SamplingTable
from hotloop.backends.cuda.steps.step import MAX_SHORT_ROWS, Packed, Shape, capacity, pack, shape_of, view_parts
from hotloop.backends.cuda.warm import warm_up
from hotloop.backends.cuda.weights import load_weights
from hotloop.core.config import MAX_DRAFTED_FORCED, EngineConfig, LoadFormat, Precision, WeightFormat
from hotloop.core.errors import BackendError, ConfigError
from hotloop.models.dummy import DummyWeights
from hotloop.models.layout import share_of
from hotloop.models.memory import fit_kv_gpu, kv_token_bytes, num_states, split_kv, state_bytes
from hotloop.models.model import Model
from hotloop.models.spec import ModelSpec

if TYPE_CHECKING:
    from hotloop.backends.cuda.modeling import ModelingDecoder

BLOCK_SIZE = 64  # a tile of keys for the kernels
STEP_TOKENS = 8192
MAX_RUNNING = 256
_CONTEXT_BYTES = 1 << 30  # what CUDA, cuBLAS and the graphs take for themselves
_NOBODY: AbstractContextManager[None] = nullcontext()


def open_cuda(
    model: Model,
    config: EngineConfig,
    *,
    weight_format: WeightFormat,
    precision: Precision,
    draft_spec: ModelSpec | None = None,
    kv_tokens: int | None = None,
    drops_windows: bool = False,
) -> "CudaBackend":
    """The model on the GPU, in bf16 unless float32 was asked for, its KV sized from what the GPU has left, unless
    it is a draft model, whose `kv_tokens` are given.
    """
    plan = plan_for(model, config, weight_format=weight_format, precision=precision, drops_windows=drops_windows)
    share = share_of(model.spec, config.gpus)
    try:
        with ExitStack() as at_failure:
            workers = Workers(config.gpus, "cuda", "nccl") if config.gpus > 1 else None
            if workers:
                at_failure.callback(workers.close)
            left_bytes = kv_tokens and kv_tokens * kv_token_bytes(model.spec, plan.kv_dtype.itemsize)
            first, *others = workers.memory if workers else [memory_of("cuda")]
            fit = partial(_fit_kv, model, plan)
            kv_bytes = left_bytes or config.gpus * min([fit(first, draft_spec), *map(fit, others)])
            flash = None if share.latent else find_flash(share, BLOCK_SIZE, plan.kv_dtype)
            backend = (
                open_ranks(model, kv_bytes, plan, workers, flash=flash)
                if workers
                else CudaBackend(model, kv_bytes, plan, flash=flash)
            )
            warm_up(backend)
            at_failure.pop_all()
            return backend
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{model.name} ran out of GPU memory while it was loaded ({first_line(error)}); "
            f"--gpu-memory below {config.gpu_memory:g} leaves more for others"
        ) from None


def plan_for(
    model: Model, config: EngineConfig, *, weight_format: WeightFormat, precision: Precision, drops_windows: bool
) -> Plan:
    """How a model is held and computed; refuses what the GPU, or this model, is not supported with."""
    dtype = torch.float32 if precision == "exact" or weight_format == "f32" else torch.bfloat16
    own = _name_of(dtype)
    is_fp8_file = model.spec.fp8 is not None and dtype == torch.bfloat16
    keeps_fp8 = is_fp8_file and torch.cuda.get_device_capability() >= FP8_CAPABILITY
    has_fp8 = weight_format == "fp8"
    plan = Plan(config, dtype, has_fp8_weights=has_fp8, keeps_fp8=keeps_fp8, drops_windows=drops_windows)
    if model.spec.family == "transformers" and ("fp8" in (weight_format, config.kv_precision) or config.gpus > 1):
        raise ConfigError(f"{model.name} is computed by transformers: not in fp8, and on one GPU only")
    if plan.has_fp8_weights:
        check_device("weights", precision)
    if config.kv_precision == "fp8":
        if model.spec.latent:
            raise ConfigError("kv_precision fp8 is not supported with latent attention (MLA), whose KV is small")
        check_device("kv_precision", precision)
    elif config.kv_precision not in ("auto", own):
        raise ConfigError(f"kv_precision {config.kv_precision} is not supported on a GPU: there it is {own} or fp8")
    return plan


def _fit_kv(model: Model, plan: Plan, memory: Memory, draft_spec: ModelSpec | None = None) -> int:
    """The bytes that one GPU, of those there are, has left for KV."""
    config, share = plan.config, share_of(model.spec, plan.config.gpus)
    return fit_kv_gpu(
        model.name,
        model.spec if plan.keeps_fp8 else replace(model.spec, fp8=None),
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        share=config.gpu_memory,
        working_bytes=sum(working_bytes(spec, config, plan.dtype.itemsize) for spec in (share, draft_spec) if spec),
        min_tokens=min(model.spec.max_context, config.max_context or 4096),
        weight_format="fp8" if plan.has_fp8_weights else _name_of(plan.dtype),
        kv_item_bytes=plan.kv_dtype.itemsize,
        draft_spec=draft_spec,
        num_gpus=config.gpus,
    )


def _name_of(dtype: torch.dtype) -> Literal["f32", "bf16"]:
    return "f32" if dtype == torch.float32 else "bf16"


def open_ranks(
    model: Model,
    kv_bytes: int,
    plan: Plan,
    workers: Workers,
    *,
    flash: Flash | None = None,
    min_saved_bytes: int = MIN_SAVED_BYTES,
) -> "CudaBackend":
    """Rank 0 of several; the others read the model's files themselves, and are opened meanwhile."""
    load_format: LoadFormat = "dummy" if isinstance(model.weights, DummyWeights) else "auto"
    with workers.opened(str(model.path), load_format, kv_bytes, plan, has_flash=flash is not None) as group:
        return CudaBackend(
            model,
            kv_bytes,
            plan,
            device=workers.rank_info.device,
            flash=flash,
            min_saved_bytes=min_saved_bytes,
            group=group,
            workers=workers,
        )


def working_bytes(spec: ModelSpec, config: EngineConfig, item_bytes: int) -> int:
    """What a step of the largest size takes beside weights and KV."""
    num_rows = config.max_step_tokens or STEP_TOKENS
    num_heads = 4 * (spec.num_heads + spec.num_kv_heads)
    mlp, experts = 3 * spec.intermediate_size, spec.experts
    if experts:
        mlp = experts.num_chosen * (experts.size + spec.hidden_size) + 3 * experts.num_experts
    width = 4 * spec.hidden_size + mlp + num_heads * spec.head_dim
    made_bytes = 0
    if experts and experts.is_mxfp4:
        made_bytes = 2 * experts.num_experts * experts.size * spec.hidden_size * item_bytes  # one matrix, dequantised
    if spec.latent:
        width += 2 * spec.num_heads * spec.latent.kv_rank
        made_bytes = (MAX_MADE_ITEMS + spec.max_context * spec.latent.width) * item_bytes
    if spec.linear:
        width += scratch_width(spec.linear)
    num_logits = 4 * (config.max_running or MAX_RUNNING) * spec.vocab_size  # as computed, as adjusted, and of drafts
    copied_bytes = ring_bytes(state_bytes(spec)) if has_host_memory(config) else 0
    return num_rows * width * item_bytes + made_bytes + 4 * num_logits + copied_bytes + _CONTEXT_BYTES


def _kv_shape(spec: ModelSpec, num_blocks: int) -> tuple[int, ...]:
    if spec.latent:
        return spec.num_layers, 1, num_blocks, 1, BLOCK_SIZE, spec.latent.width
    return len(spec.kv_layers), 2, num_blocks, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim


class CudaBackend:
    """The KV cache is one tensor, whose blocks are the same in every layer; layers with a window may have another.

    Of several ranks each is one of these, with its share of the heads. Rank 0 has the workers, and does for an engine
    what the others are told to do as well.
    """

    depth = 2
    step_sizes: Sequence[int] = MIXED_ROWS
    max_solo_prefill = math.inf
    block_size = BLOCK_SIZE
    num_window_blocks = window = 0

    def __init__(
        self,
        model: Model,
        kv_bytes: int,
        plan: Plan,
        *,
        device: str = "cuda",
        flash: Flash | None = None,
        min_saved_bytes: int = MIN_SAVED_BYTES,
        group: Group = ALONE,
        workers: Workers | None = None,
    ) -> None:
        config, dtype, kv_dtype = plan.config, plan.dtype, plan.kv_dtype
        self.spec = model.spec
        spec = share_of(model.spec, group.size)
        self._group, self._workers = group, workers
        self._wait: Wait = workers.wait if workers else lambda event: event.synchronize()
        self.step_tokens = config.max_step_tokens or STEP_TOKENS
        self.max_running = config.max_running or MAX_RUNNING
        self.vocab_size = spec.vocab_size
        self.max_context = spec.max_context
        self.block_bytes = BLOCK_SIZE * kv_token_bytes(model.spec, kv_dtype.itemsize)
        self.num_states, self.state_bytes = num_states(spec, kv_bytes, kv_dtype.itemsize), state_bytes(spec)
        self.num_blocks = (kv_bytes - self.num_states * self.state_bytes) // self.block_bytes
        if plan.drops_windows and spec.windows:
            self._split_kv(kv_bytes, kv_dtype.itemsize)
        weight_format = "fp8" if plan.has_fp8_weights else dtype
        layout = f"cuda {dtype} {weight_format} {kv_dtype} {BLOCK_SIZE} {group.size} {torch.__version__}"
        self.kv_layout = f"{model.fingerprint} {layout}"
        self._decoder = self._load(model, plan, device, flash, min_saved_bytes)
        self._make_room(spec, plan, device, flash)
        self._deltas = self._decoder.deltas if isinstance(self._decoder, Decoder) else None
        self._host = open_host_memory(self._decoder.kv, config, self._deltas)
        self.host_memory: HostMemory | None = self._host

    def _split_kv(self, kv_bytes: int, item_bytes: int) -> None:
        """Fewer blocks for layers with a window, and more for the others. Only the latter go to host memory."""
        sizes = split_kv(self.spec, kv_bytes, item_bytes, BLOCK_SIZE, self.step_tokens)
        self.num_blocks, self.num_window_blocks = sizes
        if self.num_window_blocks:
            windows = [window for window in self.spec.windows if window]
            self.window = max(windows)
            self.block_bytes -= self.block_bytes * len(windows) // self.spec.num_layers

    def _make_room(self, spec: ModelSpec, plan: Plan, device: str, flash: Flash | None) -> None:
        """For what goes to the device and comes back in the largest step; and the graphs of usual ones."""
        config = plan.config
        most = BLOCK_SIZE + config.max_draft_tokens + MAX_DRAFTED_FORCED + 1  # rows of one that decodes
        max_rows = max(self.step_tokens, BLOCK_SIZE) + self.max_running * most
        max_blocks = -(-min(self.max_context, self.num_blocks * BLOCK_SIZE) // BLOCK_SIZE)
        self._splitting = splitting = self._decoder.splitting
        has_large_windows = any(window and window > MAX_WHOLE_WINDOW for window in spec.windows)
        is_shared = config.shared_attention and not has_large_windows  # these are read by the same splits as the rest
        is_shared = is_shared and not spec.latent and not is_wide(plan.dtype, spec.head_dim)
        self._sharing = self._decoder.sharing if is_shared else None
        num_items, width = self._decoder.sharing.num_items(max_rows), max_blocks if flash or spec.latent else 0
        num_splits = splitting.max_splits(self.max_running)
        num_long = max(MAX_LONG, self.max_running)
        tiling = self._tiling = self._decoder.tiling
        num_lines = tiling.max_lines(max_rows, num_long) if tiling else 0
        largest = Shape(self.max_running, max_rows, max_rows, num_splits, num_items, num_long, 0, num_lines, width)
        self._indexes = torch.zeros(capacity(largest, max_blocks), dtype=torch.int32, device=device)
        self._chosen = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._staging = Staging(torch.device(device))
        self._sampling = SamplingTable(self.max_running)
        self._graphs: Graphs | None = None
        if plan.has_graphs and isinstance(self._decoder, Decoder):
            table_width = width if flash else 0
            shapes = shapes_for(
                self.max_running,
                max_rows,
                splitting,
                table_width=table_width,
                sharing=self._sharing,
                tiling=tiling,
            )
            self._graphs = Graphs(self._decoder, self._indexes, self._chosen, shapes)

    def _load(
        self, model: Model, plan: Plan, device: str, flash: Flash | None, min_saved_bytes: int
    ) -> "Decoder | ModelingDecoder":
        """The weights, then the KV that they leave room for."""
        spec, group = share_of(model.spec, self._group.size), self._group
        formats = {"is_fp8": plan.has_fp8_weights, "keeps_fp8": plan.keeps_fp8, "has_fp8_kv": plan.kv_dtype == E4M3}
        weights = None
        if spec.family != "transformers":
            weights = load_weights(model, device, plan.dtype, **formats, rank=group.rank, num_ranks=group.size)
        num_own = sum(window is not None for window in spec.windows) if self.num_window_blocks else 0
        (num_layers, *_), make = _kv_shape(spec, 0), partial(torch.zeros, dtype=plan.kv_dtype, device=device)
        kv = make((num_layers - num_own, *_kv_shape(spec, self.num_blocks)[1:]))
        window_kv = make((num_own, *_kv_shape(spec, self.num_window_blocks)[1:])) if num_own else None
        if weights is not None:
            return Decoder(spec, weights, kv, group, flash, min_saved_bytes, self.num_states, window_kv)
        from hotloop.backends.cuda.modeling import ModelingDecoder  # noqa: PLC0415 - seconds, and not for everyone

        return ModelingDecoder(model, plan.dtype, kv, flash, min_saved_bytes, window_kv)

    def launch(self, batch: Batch) -> "CudaFlight":
        with hardware():
            flight = CudaFlight(self._chosen, self._staging, len(batch.logit_rows), self._wait, self._sampling)
            step = self._pack(batch)
            with self._using(batch.block_ids), self._mirrored("compute", step):
                flight.logits = self.compute(step, flight.begun)
            return flight

    def _pack(self, batch: Batch) -> Packed:
        groups = self._sharing.find(batch, MAX_SHORT_ROWS) if self._sharing else []
        has_table, has_groups = self._decoder.flash is not None, bool(groups)
        sharing, tiling = self._sharing, self._tiling
        shape = shape_of(
            batch, self._splitting, has_table=has_table, sharing=sharing, has_groups=has_groups, tiling=tiling
        )
        graph = self._graphs.fitting(shape) if self._graphs else None
        if graph is None and self.spec.latent:  # keys and values are made of the latents of what it names
            shape = shape_of(batch, self._splitting, has_table=True)
        ints = pack(batch, self._splitting, graph or shape, sharing=sharing, groups=groups, tiling=tiling)
        num_chosen = 0 if batch.sources is None or not self._workers else int(batch.sources.max()) + 1
        return Packed(ints, graph or shape, graph is not None, len(batch.logit_rows), num_chosen)

    def compute(self, step: Packed, begun: Event | None = None) -> torch.Tensor:
        """A step of every rank. The logits are all there on rank 0."""
        self._staging.copy_to(self._indexes, step.ints)
        if begun:
            begun.record()
        if step.num_chosen:
            self._group.broadcast(self._chosen[: step.num_chosen])
        if self._graphs and step.is_graph:
            hidden = self._graphs.replay(step.shape)[: step.num_wanted]
        else:
            views = view_parts(self._indexes, step.shape)
            views = replace(views, logit_rows=views.logit_rows[: step.num_wanted])
            hidden = self._decoder.forward(views, self._chosen, step.shape)
        return self._decoder.logits(hidden)

    def read_blocks(self, block_ids: Sequence[int]) -> "CudaCopy":
        with hardware(), self._mirrored("gather_blocks", block_ids):
            with self._using(np.array(block_ids, np.int32)):
                gathered = self.gather_blocks(block_ids)
            return CudaCopy(gathered, self._staging, self._wait)

    def gather_blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        """What every rank has of these blocks; all of it on rank 0."""
        [ids] = self._staging.upload([np.array(block_ids, np.int32)])
        kv = self._decoder.kv
        share = torch.empty(self._shape_of(block_ids), dtype=torch.uint8, device=kv.device)
        copy_blocks(kv, ids, share.view(kv.dtype), is_out=True)
        return self._group.gather(share)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        with hardware(), self._using(np.array(block_ids, np.int32)), self._mirrored("scatter_blocks", block_ids):
            self.scatter_blocks(block_ids, data)

    def scatter_blocks(self, block_ids: Sequence[int], data: memoryview | None = None) -> None:
        """Every rank's share of what rank 0 is given, into these blocks."""
        shares = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        [ids, raw] = self._staging.upload([np.array(block_ids, np.int32), shares])
        kv = self._decoder.kv
        copy_blocks(kv, ids, self._group.scatter(raw, self._shape_of(block_ids)).view(kv.dtype), is_out=False)

    def read_state(self, slot: int) -> "CudaCopy":
        deltas = self._deltas  # hybrids are on one GPU alone
        assert deltas is not None
        with hardware():
            state = torch.empty(deltas.state_items, device=deltas.inputs.device)
            deltas.read(slot, state)
            return CudaCopy(state.view(torch.uint8), self._staging, self._wait)

    def write_state(self, slot: int, data: memoryview) -> None:
        deltas = self._deltas
        assert deltas is not None
        with hardware():
            state = torch.from_numpy(np.array(np.frombuffer(data, np.float32)))
            deltas.write(slot, state.to(deltas.inputs.device))

    def _shape_of(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        """Of a copy of what this rank has of these blocks, in bytes: not every type is exchanged between ranks."""
        kv = self._decoder.kv
        return (len(block_ids), *kv.shape[:2], *kv.shape[3:5], kv.shape[5] * kv.itemsize)

    def _using(self, block_ids: NDArray[np.int32]) -> AbstractContextManager[None]:
        """Keep copies to and from host memory, if there is any, off these blocks."""
        return self._host.step(block_ids) if self._host else _NOBODY

    def _mirrored(self, method: str, *arguments: object) -> AbstractContextManager[None]:
        """Have the other ranks, if there are any, do the same."""
        return self._workers.mirrored(method, *arguments) if self._workers else _NOBODY

    def close(self) -> None:
        """What is in flight ends first: its memory is given back. A device that is gone has nothing in flight."""
        is_waiting = self._workers is not None and self._workers.failure is not None  # maybe for ever, for other ranks
        with suppress(BackendError), hardware():
            if self._staging.is_cuda and not is_waiting:
                torch.cuda.synchronize(self._indexes.device)
        if self._workers:
            self._workers.close()
        if self._host:
            self._host.close()
        self._graphs = self._host = self.host_memory = self._deltas = None
        del self._decoder, self._indexes, self._chosen
        with suppress(BackendError), hardware():
            if torch.cuda.is_available() and not is_waiting:
                torch.cuda.empty_cache()
