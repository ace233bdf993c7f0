"""Choices on the device against the CPU's sampler in numpy, with a second Philox to foretell every draw."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotloop.backends.cuda import sampling
from hotloop.backends.cuda.memory.staging import Staging
from hotloop.backends.cuda.sampling_table import Logprobs
from hotloop.core.request import TokenLogprob

Row = NDArray[np.float32]


@dataclass
class Cuts:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def choose(logits: Row, cuts: list[Cuts], seeds: list[int], device: str) -> list[int]:
    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([getattr(cut, name) for cut in cuts], dtype=dtype, device=device)

    out = torch.full((len(logits),), -99, dtype=torch.int32, device=device)
    is_random = any(cut.temperature > 0 for cut in cuts)
    has_cuts = any(cut.temperature > 0 and (cut.top_k or cut.top_p < 1 or cut.min_p) for cut in cuts)
    sampling.choose(
        torch.tensor(logits, device=device),
        column("temperature", torch.float32),
        column("top_k", torch.int32),
        column("top_p", torch.float32),
        column("min_p", torch.float32),
        torch.tensor(seeds, dtype=torch.int64, device=device),
        out,
        is_random=is_random,
        has_cuts=has_cuts,
    )
    return out.tolist()


def philox(seed: int, num_counters: int) -> NDArray[np.uint32]:
    """Philox 4x32-10 of counters (n, 0, 0, 0): [num_counters, 4]."""
    low = np.uint64(0xFFFFFFFF)
    words = [np.arange(num_counters, dtype=np.uint64), *np.zeros((3, num_counters), np.uint64)]
    keys = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
        words = [high_b ^ words[1] ^ np.uint64(keys[0]), b & low, high_a ^ words[3] ^ np.uint64(keys[1]), a & low]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(words, 1).astype(np.uint32)


def noise(seed: int, vocab_size: int) -> NDArray[np.float64]:
    words = philox(seed, -(-vocab_size // 4)).reshape(-1)[:vocab_size]
    uniform = np.minimum((words.astype(np.float64) + 0.5) / 2**32, 1 - 2**-24)
    return -np.log(-np.log1p(-uniform))


def kept(row: Row, cuts: Cuts) -> NDArray[np.bool_]:
    """The tokens the CPU's sampler leaves; of equal logits all."""
    is_kept = row > -np.inf
    if 0 < cuts.top_k < len(row):
        is_kept &= row >= np.sort(row)[-cuts.top_k]
    weights = np.where(is_kept, np.exp((row - row.max()).astype(np.float64) / cuts.temperature), 0)
    weights[weights < cuts.min_p] = 0
    if cuts.top_p < 1:
        ordered = np.sort(weights)[::-1]
        least = ordered[np.searchsorted(np.cumsum(ordered), cuts.top_p * weights.sum())]
        weights[weights < least] = 0
    return weights > 0


def foretold(row: Row, cuts: Cuts, seed: int) -> int:
    score = row.astype(np.float64) / cuts.temperature + noise(seed, len(row))
    return int(np.where(kept(row, cuts), score, -np.inf).argmax())


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_penalties_and_biases(rng: np.random.Generator, device: str) -> None:
    logits = torch.randn(4, 500, device=device)
    num = 300
    places = rng.permutation(3 * 500)[:num]
    rows, tokens = (torch.tensor(x, dtype=torch.int32, device=device) for x in np.divmod(places, 500))
    repetition, addend = torch.rand(num, device=device) + 0.7, torch.randn(num, device=device)
    expected = logits.clone().cpu()
    for row, token, penalty, bias in zip(*(x.tolist() for x in (rows, tokens, repetition, addend)), strict=True):
        value = expected[row, token]
        expected[row, token] = (value / penalty if value > 0 else value * penalty) + bias
    sampling.adjust(logits, rows, tokens, repetition, addend)
    torch.testing.assert_close(logits.cpu(), expected)
    sampling.adjust(logits, *(x[:0] for x in (rows, tokens, repetition, addend)))
    torch.testing.assert_close(logits.cpu(), expected)


@pytest.mark.parametrize("vocab_size", [32, 77, 3000])
def test_masks(vocab_size: int, rng: np.random.Generator, device: str) -> None:
    logits = torch.randn(4, vocab_size, device=device)
    masks = rng.integers(0, 2**32, (2, -(-vocab_size // 32)), np.uint32)
    is_allowed = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :vocab_size].astype(bool)
    expected = logits.cpu().clone()
    expected[3][torch.tensor(~is_allowed[0])] = -torch.inf
    expected[1][torch.tensor(~is_allowed[1])] = -torch.inf
    rows = torch.tensor([3, 1], dtype=torch.int32, device=device)
    sampling.apply_masks(logits, rows, torch.tensor(masks.view(np.int32), device=device))
    assert torch.equal(logits.cpu(), expected)


@pytest.mark.parametrize("vocab_size", [5, 4096, 9001])
def test_the_likeliest_and_the_first_of_several(vocab_size: int, rng: np.random.Generator, device: str) -> None:
    logits = rng.normal(size=(3, vocab_size)).astype(np.float32)
    logits[1] = np.round(logits[1])
    logits[2, [vocab_size // 2, vocab_size - 1]] = 9
    cuts = [Cuts(temperature=0, top_k=2)] * 3
    assert choose(logits, cuts, [1, 2, 3], device) == logits.argmax(1).tolist()


def test_a_row_that_is_no_distribution_gives_nothing(rng: np.random.Generator, device: str) -> None:
    logits = np.repeat(rng.normal(size=(1, 5000)).astype(np.float32), 6, 0)
    logits[1, 4500] = np.nan
    logits[2, 3] = np.inf
    logits[3] = -np.inf
    logits[4, :-1] = -np.inf
    logits[5, 17] = -np.inf
    for cut in (Cuts(temperature=0), Cuts(), Cuts(top_k=3, top_p=0.5, min_p=0.1)):
        tokens = choose(logits, [cut] * 6, [3] * 6, device)
        assert tokens[1:5] == [-1, -1, -1, 4999]
        assert tokens[0] >= 0
        assert tokens[5] >= 0


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_draws_are_those_of_the_noise(temperature: float, rng: np.random.Generator, device: str) -> None:
    logits = (3 * rng.normal(size=(8, 5001))).astype(np.float32)
    seeds = rng.integers(-(2**63), 2**63, 8).tolist()
    cuts = Cuts(temperature)
    expected = [foretold(row, cuts, seed) for row, seed in zip(logits, seeds, strict=True)]
    assert choose(logits, [cuts] * 8, seeds, device) == expected


def test_draws_are_distributed_as_the_softmax(device: str) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01], np.float32))
    tokens = [foretold(logits, Cuts(), seed) for seed in range(3000)]
    assert choose(np.repeat(logits[None], 60, 0), [Cuts()] * 60, [*range(60)], device) == tokens[:60]
    counts, wanted = np.bincount(tokens, minlength=6), len(tokens) * np.exp(logits)
    assert ((counts - wanted) ** 2 / wanted).sum() < 15.1  # exceeded by one in a hundred sets of seeds


CUTS = [
    Cuts(top_k=1),
    Cuts(top_k=20),
    Cuts(top_k=700, temperature=3),
    Cuts(top_p=0.9),
    Cuts(top_p=0.1, temperature=0.5),
    Cuts(top_p=0.0),
    Cuts(min_p=0.05),
    Cuts(min_p=1.0),
    Cuts(top_k=50, top_p=0.8),
    Cuts(top_k=50, top_p=0.8, min_p=0.1, temperature=0.7),
    Cuts(top_p=0.5, min_p=0.01, temperature=2),
    Cuts(top_k=10**6, top_p=0.95),
]


@pytest.mark.parametrize("spread", [0.01, 2.0, 30.0])
def test_draws_come_from_what_the_cuts_leave(spread: float, rng: np.random.Generator, device: str) -> None:
    """Flat, common and peaked rows; exactly the token that the noise puts first among those left."""
    logits = (spread * rng.normal(size=(len(CUTS), 3001))).astype(np.float32)
    logits[::2, ::3] = -np.inf
    for seed in (1, 2):
        expected = [foretold(row, cuts, seed) for row, cuts in zip(logits, CUTS, strict=True)]
        assert choose(logits, CUTS, [seed] * len(CUTS), device) == expected


def test_equals_of_the_last_kept_token_are_kept(rng: np.random.Generator, device: str) -> None:
    row = rng.permutation(np.repeat(np.array([4, 3, 2, 1, 0], np.float32), [1, 2, 3, 10, 100]))
    for cuts, least in ((Cuts(top_k=2), 3), (Cuts(top_k=4), 2), (Cuts(top_p=0.3), 3), (Cuts(top_k=7, top_p=0.75), 2)):
        tokens = [foretold(row, cuts, seed) for seed in range(200)]
        assert {*tokens} == {*np.flatnonzero(row >= least).tolist()}
        assert choose(np.repeat(row[None], 20, 0), [cuts] * 20, [*range(20)], device) == tokens[:20]


def test_many_equal_logits(device: str) -> None:
    logits = np.zeros((3, 4500), np.float32)
    cuts = [Cuts(top_k=5), Cuts(top_p=0.3), Cuts(top_k=5, top_p=0.3, min_p=0.5)]
    assert choose(logits, cuts, [4, 5, 6], device) == [foretold(logits[0], Cuts(), seed) for seed in (4, 5, 6)]


def test_a_draw_does_not_depend_on_the_batch(rng: np.random.Generator, device: str) -> None:
    logits = (2 * rng.normal(size=(len(CUTS) + 1, 4200))).astype(np.float32)
    cuts, seeds = [*CUTS, Cuts()], rng.integers(0, 2**63, len(CUTS) + 1).tolist()
    together = choose(logits, cuts, seeds, device)
    alone = [choose(logits[i : i + 1], cuts[i : i + 1], seeds[i : i + 1], device)[0] for i in range(len(cuts))]
    assert together == alone
    assert choose(logits[::-1].copy(), cuts[::-1], seeds[::-1], device) == together[::-1]


def test_logprobs_of_a_token_and_of_the_likeliest(rng: np.random.Generator, device: str) -> None:
    row = rng.normal(size=300).astype(np.float32)
    expected = row - np.log(np.exp(row.astype(np.float64)).sum())
    logits = torch.tensor(np.stack([-row, row, -row, row]), device=device)
    found = Logprobs(logits, {1: 4, 3: 0}, Staging(torch.device(device)).upload)
    logits.zero_()  # what is measured is what the model said
    found.measure(torch.tensor([1, 17, 2, -1], dtype=torch.int32, device=device))
    if device == "cuda":
        torch.cuda.synchronize()
    one = found.of(1, 17, 4)
    assert (one.token_id, one.logprob) == (17, pytest.approx(expected[17], abs=1e-5))
    assert [token for token, _ in one.top] == np.argsort(-row)[:4].tolist()
    assert [value for _, value in one.top] == pytest.approx(np.sort(expected)[::-1][:4], abs=1e-5)
    assert found.of(3, 9, 0) == TokenLogprob(9, pytest.approx(expected[9], abs=1e-5), ())  # another than was chosen
