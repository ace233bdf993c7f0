"""What a model is, without its weights: the numbers a backend builds a graph from."""

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import ModelError

Family = Literal[
    "llama", "qwen2", "qwen3", "qwen3moe", "mixtral", "gptoss", "glm4moe", "qwen3next", "qwen35", "qwen35moe",
    "deepseek2", "deepseek3", "glm4moelite", "transformers",
]  # fmt: skip
Int4Method = Literal["awq", "gptq", "compressed-tensors"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary frequencies that are stretched for long contexts, whichever way."""

    divisors: tuple[float, ...]
    """Of the frequency of each pair of dimensions."""
    magnitude: float = 1.0
    """What turned queries and keys are multiplied by."""


@dataclass(frozen=True, slots=True)
class Int4Spec:
    """Matrices in four bits: a weight is (number - zero point) * scale, and a group of a row has both in common."""

    method: Int4Method
    """Who made the files, which says how the numbers are packed."""
    group_size: int | None
    """Weights in a group; None if a whole row is one."""
    has_zeros: bool = True
    """Whether zero points are stored; they are 8 if not."""
    zero_offset: int = 0
    """What a stored zero point lacks."""


@dataclass(frozen=True, slots=True)
class Fp8Spec:
    """Matrices in e4m3: a weight is its number times its scale."""

    scales: str
    """What the files call a matrix's scales, in place of `weight`."""
    block: tuple[int, int] | None = None
    """Rows and columns that have a scale in common; None: all of a matrix, or each row's columns, as the files show."""


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts: many small MLPs in place of one, of which a router chooses a few for each token.

    A router's scores are the softmax of its logits, or the sigmoid of each; what the chosen experts come to is summed
    up, each times its score.
    """

    num_experts: int
    num_chosen: int
    size: int
    """Rows of an expert's gate, and of its up."""
    is_sigmoid: bool = False
    is_normed: bool = True
    """Whether the scores of the chosen are made to sum up to one."""
    scale: float = 1.0
    """Of the scores, last."""
    has_bias: bool = False
    """Whether experts have biases."""
    has_router_bias: bool = False
    """Whether something is added to the logits; to the scores, for the choice alone, where they are sigmoids."""
    gate_limit: float | None = None
    """Beyond which gate and up are cut off, and then multiplied as sigmoid(slope * gate) * gate * (up + 1)."""
    gate_slope: float = 1.0
    shared_size: int = 0
    """Rows of the gate of an MLP beside the experts, which every token goes to."""
    has_shared_gate: bool = False
    """Whether what that comes to is multiplied by the sigmoid of a number of the token's own."""
    is_mxfp4: bool = False
    """Whether the files hold the experts' matrices in MXFP4."""
    num_dense: int = 0
    """Layers before the first with experts, which have an MLP."""
    num_groups: int = 1
    """Neighbours that a router looks at together first: it chooses among the experts of the best groups alone. A group
    is as good as its best expert, or as its best two together where scores are sigmoids."""
    num_chosen_groups: int = 1


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """Linear attention by the gated delta rule, which some layers have in place of attention over KV."""

    layers: tuple[int, ...]
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    """Tokens that the convolution before it sees."""

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """Queries, keys and values."""
        return 2 * self.key_size + self.value_size


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (MLA): of a token one latent is kept, which every head makes its key and its value
    from, and one rotary key that all heads have in common.

    kept     [ latent, kv_rank | rotary key, rope_dim ]
    a query  [ nope_dim | rope_dim ]      the first part meets the key made from the latent, the second the rotary key
    """

    q_rank: int | None
    """Of the latent that queries are made from; None: they are made from the token itself."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    """Of logits."""
    is_interleaved: bool = True
    """Whether the files have the dimensions of a rotary pair side by side."""
    norm_eps: float = 1e-6
    """Of the norms of latents, whatever the model's own is."""

    @property
    def width(self) -> int:
        """Of what is kept."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer: RMS norm, rotary positions, grouped-query attention, gated MLP or experts."""

    family: Family
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    has_tied_head: bool = False
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_qk_norm: bool = False
    has_sinks: bool = False
    """Whether each head has a logit of its own beside those of the keys, which takes a share and gives nothing."""
    windows: tuple[int | None, ...] = ()
    """For each layer how many tokens it sees, the last one included; None: all of them. Empty if all layers do."""
    rotary_dim: int | None = None
    """How many dimensions of a head turn, if not all: the first of each half."""
    experts: ExpertsSpec | None = None
    """What layers have in place of an MLP, if anything."""
    linear: LinearSpec | None = None
    """The layers without KV of a hybrid, if it is one. Its attention has a gate, and its norms are stored less one."""
    latent: LatentSpec | None = None
    """How attention makes keys and values, if from latents. A head's dimensions are then those of its query."""
    int4: Int4Spec | None = None
    """How the files hold the matrices of layers, if in four bits."""
    fp8: Fp8Spec | None = None
    """How the files hold those that are in e4m3, if any are."""
    num_weights: int | None = None
    """In all, of a model that transformers computes: its shape does not say."""

    @property
    def kv_layers(self) -> list[int]:
        """The layers that have KV."""
        return [layer for layer in range(self.num_layers) if not self.is_linear(layer)]

    @property
    def num_kv_layers(self) -> int:
        """How many those are, without going through all: files may claim billions."""
        return self.num_layers - (len(self.linear.layers) if self.linear else 0)

    @property
    def mixed_size(self) -> int:
        """Of what the heads of attention come to, side by side."""
        return self.num_heads * (self.latent.value_dim if self.latent else self.head_dim)

    def is_linear(self, layer: int) -> bool:
        return self.linear is not None and layer in self.linear.layers

    def window(self, layer: int) -> int | None:
        """How many tokens a layer sees; None: all of them."""
        return self.windows[layer] if self.windows else None

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer >= self.experts.num_dense


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as its file holds it: bytes that are read when they are looked at."""

    data: NDArray[np.uint8]
    """As `shape`, but the last axis counts bytes: rows are whole, whatever the kind."""
    kind: str
    """`F32`, `F16`, `BF16`, or what GGML calls a kind of quantised block, such as `Q4_K`."""
    shape: tuple[int, ...]

    def floats(self) -> NDArray[np.float32]:
        """As float32, if it is of a kind of float."""
        if self.kind == "BF16":  # the upper half of a float32
            widened: NDArray[np.uint32] = np.left_shift(self.data.view("<u2"), 16, dtype=np.uint32)
            return widened.view(np.float32)
        return np.array(self.data.view({"F16": "<f2", "F32": "<f4"}[self.kind]), np.float32)

    def rows(self, rows: NDArray[np.intp]) -> "Stored":
        """Those of a matrix, or numbers of a vector, as many as there are in another order."""
        data = np.ascontiguousarray(self.data.reshape(self.shape[0], -1)[rows])
        return Stored(data.reshape(self.data.shape), self.kind, self.shape)


@dataclass(frozen=True, slots=True)
class FileTensor:
    """Where in a file a tensor lies, and of what kind it is, as `Stored` has it."""

    path: Path
    offset: int
    kind: str
    shape: tuple[int, ...]
    row_bytes: int

    def check_end(self, name: str, file_bytes: int) -> None:
        """Refuse a file that ends before the tensor does."""
        end = self.offset + prod(self.shape[:-1]) * self.row_bytes
        if end > file_bytes:
            raise ModelError(f"{self.path} is cut short: tensor {name} ends at byte {end}, it at byte {file_bytes}")

    def stored(self) -> Stored:
        """Mapped, not read."""
        shape = *self.shape[:-1], self.row_bytes
        begin = self.offset % mmap.ALLOCATIONGRANULARITY
        with self.path.open("rb", buffering=0) as file:
            length, place = begin + prod(shape), self.offset - begin
            mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=place)
        return Stored(np.frombuffer(mapped, np.uint8, offset=begin).reshape(shape), self.kind, self.shape)


@dataclass(frozen=True, slots=True)
class Int4Stored:
    """A matrix in four bits as its files hold it; `int4` in `models` knows how that is to be read."""

    words: NDArray[np.int32]
    scales: Stored
    zeros: NDArray[np.int32] | None
    group_ids: NDArray[np.int32] | None
    """The group of each column; None if groups are columns side by side."""
    spec: Int4Spec
    shape: tuple[int, int]

    @property
    def kind(self) -> str:
        return f"int4 ({self.spec.method})"


@dataclass(frozen=True, slots=True)
class Fp8Stored:
    """A matrix in e4m3 as its file holds it, and scales for each of its rows."""

    data: NDArray[np.uint8]  # [out, in]
    scales: NDArray[np.float32]  # [out, groups of columns]
    group_size: int
    """Columns of a group; the last may have fewer."""
    kind: ClassVar[str] = "F8_E4M3"

    @property
    def shape(self) -> tuple[int, int]:
        num_out, num_in = self.data.shape
        return num_out, num_in

    def rows(self, rows: NDArray[np.intp]) -> "Fp8Stored":
        return Fp8Stored(self.data[rows], self.scales[rows], self.group_size)


AnyStored: TypeAlias = Stored | Int4Stored | Fp8Stored


class Weights(Protocol):
    """The tensors of a model, one at a time, by one set of names whatever the file calls them:

    `embed` `final_norm` `head`, and for each layer `layers.N.` +
    `attn_norm` `q` `k` `v` `o` `q_bias` `k_bias` `v_bias` `o_bias` `q_norm` `k_norm` `sinks` `mlp_norm` and
    `gate` `up` `down`, or of a mixture of experts `router` `router_bias` `shared_gate` `shared_up` `shared_down`, and
    for each expert `experts.M.` + `gate` `up` `down` `gate_bias` `up_bias` `down_bias`

    Latent attention has `kv_a` `kv_a_norm` `kv_b` for `k` and `v`, and for `q` it may have `q_a` `q_a_norm` `q_b`.

    Matrices are [out, in]. Rotary halves are kept apart, as Hugging Face does, never interleaved.
    `head` is absent where the head is tied to `embed`.
    """

    def read(self, name: str) -> NDArray[np.float32]:
        """A tensor as float32."""

    def stored(self, name: str) -> AnyStored:
        """The same tensor as it is stored, its rows in the same order."""
