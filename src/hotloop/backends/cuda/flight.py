"""What was launched, and what comes back of it: a step's tokens, and copies of blocks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hotloop.backends.backend import Allowed, Sampling
from hotloop.backends.cuda.failure import hardware
from hotloop.backends.cuda.memory.staging import Event, Staging, to_host
from hotloop.backends.cuda.sampling_table import Logprobs, SamplingTable, choose_tokens
from hotloop.backends.host import NOT_NUMBERS
from hotloop.core.errors import BackendError
from hotloop.core.request import TokenLogprob

Wait = Callable[[Event], None]
"""Until the device got that far."""


class CudaFlight:
    """A step on the stream. Its tokens are copied to the host as soon as they are chosen."""

    logits: torch.Tensor

    def __init__(
        self, chosen: torch.Tensor, staging: Staging, num_logits: int, wait: Wait, table: SamplingTable
    ) -> None:
        self._wait = wait
        self._table = table
        self._chosen = chosen[:num_logits]
        self._staging = staging
        self._logprobs: Logprobs | None = None
        self.begun, self.ended = staging.event(), staging.event()

    def sample(self, sampling: Sampling) -> None:
        with hardware():
            if sampling.rows:
                rows = self._table.rows(sampling)
                if num_tops := rows.num_tops:
                    self._logprobs = Logprobs(self.logits, num_tops, self._staging.upload)
                choose_tokens(self.logits, rows, self._chosen, self._staging.upload)
            self._result = to_host(self._chosen)
            if self._logprobs:
                self._logprobs.measure(self._chosen)
            self.ended.record()
            del self.logits

    def wait(self) -> "CudaChosen":
        with hardware():
            self._wait(self.ended)
            device_s = self.begun.elapsed_time(self.ended) / 1000
            return CudaChosen(self._result.tolist(), self._logprobs, device_s)


@dataclass(slots=True)
class CudaChosen:
    """Tokens, on the host."""

    token_ids: list[int]
    logprobs: Logprobs | None
    device_s: float

    def token(self, row: int, allowed: Allowed | None = None) -> int:
        token_id = self.token_ids[row]
        if token_id >= 0:
            return token_id
        raise BackendError(NOT_NUMBERS)

    def logprob(self, row: int, token_id: int, num_top: int) -> TokenLogprob:
        assert self.logprobs is not None
        with hardware():
            return self.logprobs.of(row, token_id, num_top)


class CudaCopy:
    """Blocks on their way to the host, on the same stream."""

    def __init__(self, gathered: torch.Tensor, staging: Staging, wait: Wait) -> None:
        self._wait = wait
        self._host = to_host(gathered)
        self._arrived = staging.event(has_time=False)
        self._arrived.record()

    def wait(self) -> memoryview:
        with hardware():
            self._wait(self._arrived)
        return memoryview(self._host.numpy().reshape(-1))
