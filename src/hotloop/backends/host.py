"""Flights of backends whose logits are on the host: computed when they are waited for, chosen from when asked.

Choosing lazily is quick here: most tokens of a grammar are settled by asking about the likeliest one, without a mask.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.backends.backend import Allowed, Sampling
from hotloop.backends.sampler import Rows, logprob, sample
from hotloop.core.errors import BackendError
from hotloop.core.request import TokenLogprob

NOT_NUMBERS = "the model computed logits that are not numbers"


class HostFlight:
    """A batch that `run` computes: logits [logits, vocabulary], valid until the next run."""

    def __init__(self, run: Callable[[], NDArray[np.float32]]) -> None:
        self._run = run
        self._sampling = Sampling(())

    def sample(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def wait(self) -> "HostSampledTokens":
        began_at = time.perf_counter()
        logits = self._run()
        return HostSampledTokens(logits, self._sampling, time.perf_counter() - began_at)


class HostSampledTokens:
    """Chooses a token when it is asked for."""

    def __init__(self, logits: NDArray[np.float32], sampling: Sampling, device_s: float) -> None:
        self.device_s = device_s
        self._sampling = sampling
        self._logits = Rows(logits)

    def token(self, row: int, allowed: Allowed | None = None) -> int:
        self._check(row)
        return sample(self._logits, row, self._sampling.rows[row], allowed, self._sampling.eos_ids)

    def logprob(self, row: int, token_id: int, num_top: int) -> TokenLogprob:
        self._check(row)
        return logprob(self._logits.logits[row], token_id, num_top)

    def _check(self, row: int) -> None:
        if not self._logits.is_valid[row]:
            raise BackendError(NOT_NUMBERS)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy that is there already."""

    data: memoryview

    def wait(self) -> memoryview:
        return self.data
