"""Log-probabilities of the model's own distribution, for the rows that ask for them.

They are worked out behind the choice of the tokens and travel with them, so nobody waits for the device a second time.
Only the token that a grammar put in the place of the chosen one has to be looked up.
"""

from collections.abc import Mapping

import numpy as np
import torch

from hotloop.backends.cuda.choosing import Upload
from hotloop.backends.cuda.staging import to_host
from hotloop.core.request import TokenLogprob


class Logprobs:
    """Some rows' logits as the model made them: made before anything changes them, measured once tokens are chosen."""

    def __init__(self, logits: torch.Tensor, num_tops: Mapping[int, int], upload: Upload) -> None:
        self._places = {row: i for i, row in enumerate(num_tops)}
        self._num_top = min(max(num_tops.values()), logits.shape[1])
        [self._rows] = upload([np.array([*num_tops], np.int32)])
        self._logits = logits.index_select(0, self._rows)

    def measure(self, chosen: torch.Tensor) -> None:
        """`chosen` [wanted] are the tokens of all rows; -1 where there is none."""
        self._totals = torch.logsumexp(self._logits, 1, keepdim=True)
        token_ids = chosen.index_select(0, self._rows).clamp(min=0).long()[:, None]
        top_logits, top_ids = self._logits.topk(self._num_top)
        logs = torch.cat((self._logits.gather(1, token_ids), top_logits), 1) - self._totals
        self._ids = to_host(torch.cat((token_ids, top_ids), 1))
        self._logs = to_host(logs)

    def of(self, row: int, token_id: int, num_top: int) -> TokenLogprob:
        """Once the step has ended."""
        place = self._places[row]
        (chosen_id, *top_ids), (log, *logs) = self._ids[place].tolist(), self._logs[place].tolist()
        if token_id != chosen_id:
            log = float(self._logits[place, token_id] - self._totals[place, 0])
        return TokenLogprob(token_id, log, tuple(zip(top_ids[:num_top], logs[:num_top], strict=True)))
