"""In what order files have the rows of a head, and in what order we have them: with rotary halves apart."""

import numpy as np
from numpy.typing import NDArray

from hotloop.models.spec import LatentSpec, ModelSpec

_TURNED = ("q", "k", "q_bias", "k_bias", "q_norm", "k_norm")


def head_orders(spec: ModelSpec) -> dict[str, NDArray[np.intp]]:
    """By tensor of a layer the order of a head's rows, if it is another than the files'."""
    if spec.latent and spec.latent.is_interleaved:
        return halves_of_latent(spec.latent)
    return dict.fromkeys(_TURNED, halves_first(spec)) if spec.rotary_dim else {}


def rows_in_order(num_rows: int, order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Each head's rows in that order."""
    return (np.arange(0, num_rows, len(order))[:, None] + order).ravel()


def pairs_apart(count: int) -> NDArray[np.intp]:
    """Of a0 b0 a1 b1 .. first all a, then all b."""
    return np.arange(count).reshape(-1, 2).T.ravel()


def halves_first(spec: ModelSpec) -> NDArray[np.intp]:
    """The dimensions of a head as they are stored, in our order. Queries and keys in the same order are as alike as
    they were.

    stored   [ turns: first | second | does not turn: a | b ]
    ours     [ first | a ]  [ second | b ]
    """
    turning, half = spec.rotary_dim or spec.head_dim, spec.head_dim // 2
    first, second, still = np.split(np.arange(spec.head_dim), [turning // 2, turning])
    return np.concatenate([first, still[: half - len(first)], second, still[half - len(first) :]])


def halves_of_latent(latent: LatentSpec) -> dict[str, NDArray[np.intp]]:
    """By tensor the rows of a head as they are stored, in our order.

    stored   [ does not turn | a0 b0 a1 b1 .. ]
    ours     [ does not turn | a0 a1 .. b0 b1 .. ]
    """
    turns = pairs_apart(latent.rope_dim)
    still = {"q": latent.nope_dim, "q_b": latent.nope_dim, "kv_a": latent.kv_rank}
    return {name: np.concatenate([np.arange(count), count + turns]) for name, count in still.items()}
