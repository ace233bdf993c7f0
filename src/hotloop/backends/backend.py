"""The seam to the hardware: batches are launched, the tokens chosen after them are waited for.

    launch(batch) ──> Flight ── sample(sampling) ──> wait() ──> SampledTokens
                        │ the forward pass runs         │ the only synchronisation
                        └ masks are made meanwhile      └ token ids, not logits

Whatever is launched or copied takes effect in the order of the calls, so a block may be given to somebody else as soon
as its last user was launched. `depth` is how many batches may be in flight: with two, a row of the second may be a
token that the first has yet to choose.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop.core.request import Request, TokenLogprob

Mask = NDArray[np.uint8]
"""One bit a token of the vocabulary, the lowest bit of the first byte first: 1 may come next, 0 may not."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step as arrays. Sequence i computes its tokens [past_lens[i], past_lens[i] + its share of `token_ids`).

    token_ids   [ a a a a a | b | c c c ]     a: a chunk, b: one token, c: a token and its drafts
    sources     [ - - - - - | 3 | - - - ]     b is what the batch before chooses after its logit row 3; -1: it is known
    query_starts[ 0           5   6       9 ]
    block_ids   [ a0 a1 a2 | b0 b1 | c0 ]     the blocks that hold each sequence, new tokens included
    block_begins[ 0          3       5    6 ]
    logit_rows  [ 4, 5, 6, 7, 8 ]             rows of `token_ids` after which a token is chosen
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    past_lens: NDArray[np.int32]
    query_starts: NDArray[np.int32]
    block_ids: NDArray[np.int32]
    block_begins: NDArray[np.int32]
    logit_rows: NDArray[np.int64]
    sources: NDArray[np.int32] | None = None
    """None: every token is known."""
    states: NDArray[np.int32] | None = None
    """[sequences, 2], for hybrid models: the slot with the recurrent state a sequence goes on from (-1: the empty one)
    and the slot, the same or another, that holds it afterwards. No sequence writes what another reads."""
    window_ids: NDArray[np.int32] | None = None
    """As `block_ids`, for layers with a window, where these have memory of their own. Those before a window are any."""


def prompt_batch(num_tokens: int, block_size: int, num_logits: int = 1) -> Batch:
    """A prompt in the first blocks, with logits for its last tokens, to warm up with. Its blocks are overwritten."""
    num_blocks = -(-num_tokens // block_size)
    return Batch(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=np.arange(num_tokens),
        past_lens=np.zeros(1, np.int32),
        query_starts=np.array([0, num_tokens], np.int32),
        block_ids=np.arange(num_blocks, dtype=np.int32),
        block_begins=np.array([0, num_blocks], np.int32),
        logit_rows=np.arange(num_tokens - num_logits, num_tokens),
    )


class Allowed(Protocol):
    """Which tokens may come next."""

    def allows(self, token_id: int) -> bool: ...
    def mask(self) -> Mask: ...


@dataclass(slots=True)
class SampleRow:
    """A token to be chosen: the one at `position` of this request.

    known to the request  [ token_ids ........ ]
    before this token     [ token_ids ........ | drafts ][ position ]
    """

    request: Request
    position: int
    drafts: Sequence[int] = ()
    """The tokens before it that are drafted; how many of them the request has meanwhile made its own may change."""

    @property
    def num_output(self) -> int:
        """How many tokens of the answer come before it."""
        return self.position - self.request.num_prompt

    def token_ids(self, begin: int = 0) -> NDArray[np.int32]:
        """All tokens before it, from `begin` on."""
        known = np.array(self.request.token_ids[begin : self.position], np.int32)
        num_drafted = self.position - begin - len(known)
        return np.append(known, np.array(self.drafts, np.int32)[len(self.drafts) - num_drafted :])


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a batch are chosen: a row of logits for each, and which of them a grammar restricts."""

    rows: Sequence[SampleRow]
    eos_ids: frozenset[int] = frozenset()
    """What an answer may not end with while it is too short."""
    masks: Callable[[], Iterable[tuple[int, Mask]]] = tuple
    """Makes the masks, by row. A host flight has no use for them: it asks `SampledTokens.token`'s `allowed` instead."""


class SampledTokens(Protocol):
    """What came of a batch. Rows are numbered as those with logits."""

    device_s: float
    """How long the hardware took for it."""

    def token(self, row: int, allowed: Allowed | None = None) -> int:
        """The token of a row. `allowed` is its grammar, which a device that was given masks has obeyed already.

        Raises BackendError if the model computed no numbers, RequestError if the grammar fails.
        """

    def logprob(self, row: int, token_id: int, num_top: int) -> TokenLogprob:
        """From the model's own distribution, before temperature, penalties and cuts; only where it was asked for."""


class Flight(Protocol):
    """A batch under way."""

    def sample(self, sampling: Sampling) -> None:
        """Say how its tokens are chosen; once, before `wait` and before the next launch."""

    def wait(self) -> SampledTokens:
        """What was chosen. Raises BackendError if the hardware failed."""


class Copy(Protocol):
    """Bytes on their way to the host."""

    def wait(self) -> memoryview:
        """On any thread."""


class Restore(Protocol):
    """Blocks on their way back from host memory. Until it is done nobody may use either end of it."""

    num_bytes: int

    @property
    def is_done(self) -> bool:
        """Whether `wait` would not wait; never raises."""

    def wait(self) -> float:
        """How long the copying itself took, in seconds. Raises BackendError if it failed."""


class HostMemory(Protocol):
    """Room for blocks beside the hardware's own, from where they come back quicker than they are computed."""

    num_blocks: int
    num_states: int
    """Slots for recurrent states; 0 where the hardware has none."""

    def offload(self, block_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        """Copy these blocks, as they are after all that was launched, to as many of the host's. They may be given to
        somebody else at once.
        """

    def offload_state(self, slot: int, host_slot: int) -> None:
        """As `offload`, a recurrent state."""

    def restore(
        self, host_ids: Sequence[int], block_ids: Sequence[int], states: tuple[int, int] | None = None
    ) -> Restore:
        """Begin to copy what was offloaded back into as many blocks, while other work goes on; and a state, from a slot
        of the host to one of the hardware.
        """


class Backend(Protocol):
    """Hardware that holds `num_blocks` KV blocks of `block_size` tokens each and computes batches over them."""

    depth: int
    """Most batches in flight: 1, or 2 where a row may be a token that is still to be chosen."""
    step_tokens: int
    """How many tokens a step should have at most, unless somebody knows better."""
    max_running: int
    """How many requests a step should have at most, likewise."""
    step_sizes: Sequence[int]
    """Numbers of tokens in ascending order: a step of another number takes as long as one of the next. Of more than the
    last, and if there are none, every token counts."""
    max_solo_prefill: float
    """How long a step prefills for one who is alone, at most, in steps that prefill nothing: what such a step costs
    beside its tokens is a small part of it then. Infinite where only large steps are quick."""
    block_size: int
    num_blocks: int
    vocab_size: int
    max_context: int
    block_bytes: int
    num_states: int
    """Slots for the recurrent states of a hybrid model, each of `state_bytes`; 0 where KV is all there is."""
    state_bytes: int
    num_window_blocks: int
    """Blocks of layers with a sliding window, if these are others than `num_blocks`; 0 if all layers have the same."""
    window: int
    """Tokens that the largest of these windows has."""
    kv_layout: str
    """What the bytes of a block depend on beside its tokens: the model, the precision, who computes and stores them."""
    host_memory: HostMemory | None
    """None where there is none beside the hardware's own, as on a CPU."""

    def launch(self, batch: Batch) -> Flight:
        """Begin to write the KV of every token into its blocks. Raises BackendError if the hardware fails."""

    def read_blocks(self, block_ids: Sequence[int]) -> Copy:
        """A copy of these blocks' KV as it is after all that was launched, in an order of the backend's own."""

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Put back what `read_blocks` gave, into as many blocks, before whatever is launched next."""

    def read_state(self, slot: int) -> Copy:
        """As `read_blocks`, a recurrent state: `state_bytes`."""

    def write_state(self, slot: int, data: memoryview) -> None:
        """As `write_blocks`."""

    def close(self) -> None:
        """Give the memory back."""
