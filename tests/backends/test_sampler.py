"""Which tokens may come, how often they do, and that the batch has no say in it."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.tiny import EOS_ID, make_request

from hotloop.backends.backend import SampleRow
from hotloop.backends.sampler import Rows, _noise, _shape, address, choose, logprob
from hotloop.backends.sampler import sample as sample_row
from hotloop.core.request import Request, SamplingParams

VOCAB = 300
RNG = np.random.default_rng(7)
LOGITS = (3 * RNG.standard_normal((8, VOCAB))).astype(np.float32)
EOS_IDS = frozenset([EOS_ID])


def request(*output: int, seed: int = 0, prompt: tuple[int, ...] = (1, 2, 3), **params: Any) -> Request:
    made = make_request(prompt, sampling=SamplingParams(**params))
    made.token_ids.extend(output)
    made.seed = seed
    return made


def row_of(made: Request) -> SampleRow:
    return SampleRow(made, made.num_tokens)


def sample_all(logits: NDArray[np.float32], requests: list[Request]) -> list[int]:
    rows = Rows(logits)
    return [sample_row(rows, i, row_of(made), None, EOS_IDS) for i, made in enumerate(requests)]


def sample(row: NDArray[np.float32], made: Request) -> int:
    [token_id] = sample_all(row[None], [made])
    return token_id


def support(row: NDArray[np.float32], num_draws: int = 1000, **params: Any) -> set[int]:
    """Every token that some draw gives."""
    settings = SamplingParams(**params)
    return {choose(row, settings, address(1, position)) for position in range(num_draws)}


def softmax(row: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    return weights / weights.sum()


def test_greedy_takes_the_likeliest() -> None:
    requests = [request(temperature=0) for _ in LOGITS]
    assert sample_all(LOGITS, requests) == LOGITS.argmax(-1).tolist()
    assert sample(LOGITS[0], request(temperature=1e-9)) == LOGITS[0].argmax()


def test_nothing_wanted_nothing_sampled() -> None:
    assert sample_all(LOGITS[:0], []) == []


def test_a_seed_gives_the_same_tokens_whatever_the_batch() -> None:
    def draw(order: list[int]) -> dict[int, int]:
        requests = [request(seed=i, top_p=0.9) for i in order]
        return dict(zip(order, sample_all(LOGITS[order], requests), strict=True))

    together = draw([0, 1, 2, 3, 4, 5, 6, 7])
    assert draw([7, 6, 5, 4, 3, 2, 1, 0]) == together
    assert {i: draw([i])[i] for i in range(8)} == together


def test_seeds_positions_and_tokens_have_noise_of_their_own() -> None:
    keys = {address(seed, position) for seed in (-1, 0, 1, 2**63, 2**80 + 5) for position in range(100)}
    noise = np.array([_noise(key, 0, 100) for key in keys])
    assert len({*noise.ravel().tolist()}) == 500 * 100
    assert (noise > 0).all()
    assert abs(noise.mean() - 1) < 0.02
    assert abs(np.corrcoef(noise.T) - np.eye(100)).max() < 0.25, "of neighbours, too"
    assert (_noise(7, 40, 10) == _noise(7, 0, 100)[40:50]).all(), "a token's is the same wherever it is drawn with"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("params", [{}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.001}, {"temperature": 0.7}])
def test_logits_that_differ_in_the_last_digits_give_the_same_tokens(params: dict[str, Any]) -> None:
    """As those of a cached prompt differ from a computed one's: by 3e-6."""
    rng, settings = np.random.default_rng(1), SamplingParams(**params)
    for number in range(5):
        row = rng.normal(0, 3, 49152).astype(np.float32)
        row[rng.integers(0, len(row), 30)] += rng.uniform(5, 10, 30).astype(np.float32)
        other = row + rng.normal(0, 3e-6, len(row)).astype(np.float32)
        keys = [address(number, position) for position in range(40)]
        assert [choose(row, settings, key) for key in keys] == [choose(other, settings, key) for key in keys]


def test_top_k_keeps_the_k_likeliest() -> None:
    row = LOGITS[0] / 8
    assert support(row, top_k=5) == set(np.argsort(row)[-5:].tolist())
    assert support(row, top_k=1) == {int(row.argmax())}
    assert support(row, top_k=VOCAB) == support(row, top_k=VOCAB + 50) == support(row)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    row = LOGITS[1] / 8
    probabilities = softmax(row)
    order = np.argsort(-probabilities)
    for top_p in (0.01, 0.3, 0.6):
        num_kept = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1
        assert support(row, 4000, top_p=top_p) == set(order[:num_kept].tolist())


def test_min_p_keeps_what_is_likely_enough() -> None:
    row = LOGITS[2] / 2
    probabilities = softmax(row)
    likely = set(np.flatnonzero(probabilities >= 0.2 * probabilities.max()).tolist())
    assert support(row, min_p=0.2) == likely
    assert support(row, min_p=1.0) == {int(row.argmax())}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("vocab", [3, 256, 257, 400])
def test_the_ends_of_the_distribution(vocab: int) -> None:
    row = np.zeros(vocab, np.float32)
    assert support(row, 5000) == set(range(vocab))
    row[vocab // 2 :] = -np.inf
    assert support(row, 3000) == set(range(vocab // 2))
    row[0] = -np.inf
    row[1] = 0
    assert min(support(row)) == 1


@pytest.mark.parametrize("vocab", [300, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 2000))])
def test_tokens_come_as_often_as_they_should(vocab: int) -> None:
    row = np.resize(LOGITS[3] / 2, vocab)
    expected = softmax(row, temperature=0.7)
    num_draws = 20_000
    params = SamplingParams(temperature=0.7)
    counts = Counter(choose(row, params, address(11, i)) for i in range(num_draws))
    often = np.flatnonzero(expected * num_draws >= 5)
    chi_square = sum((counts[i] - num_draws * expected[i]) ** 2 / (num_draws * expected[i]) for i in often.tolist())
    assert chi_square < len(often) + 5 * math.sqrt(2 * len(often))


def penalised(row: NDArray[np.float32], made: Request) -> list[float]:
    """The penalties as their definitions read, a token at a time."""
    params, values = made.sampling, row.astype(np.float64).tolist()
    for token_id in set(made.token_ids):
        value = values[token_id]
        values[token_id] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token_id, count in Counter(made.output_ids).items():
        values[token_id] -= params.presence_penalty + count * params.frequency_penalty
    return values


def test_penalties_follow_their_definitions() -> None:
    made = request(
        5, 5, 9, 200, 5, prompt=(1, 9, 9), repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=-0.25
    )
    shaped = _shape(LOGITS[4], row_of(made), EOS_IDS)
    np.testing.assert_allclose(shaped, penalised(LOGITS[4], made), rtol=1e-5, atol=1e-5)


def test_the_logits_themselves_are_left_alone() -> None:
    before = LOGITS.copy()
    sample(LOGITS[0], request(4, 4, frequency_penalty=1, logit_bias={3: 5.0}, min_tokens=9, top_p=0.5, logprobs=3))
    assert (before == LOGITS).all()


def test_a_bias_forces_or_forbids() -> None:
    best = int(LOGITS[5].argmax())
    for params in ({"temperature": 0}, {"top_p": 0.9}, {"top_k": 3}):
        assert sample(LOGITS[5], request(logit_bias={17: 100}, **params)) == 17
        assert sample(LOGITS[5], request(logit_bias={best: -100}, **params)) != best


def test_the_end_may_not_come_before_min_tokens() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[EOS_ID], row[8], row[4] = 30, 20, 10
    assert sample(row, request(temperature=0, min_tokens=2, stop_token_ids=frozenset({8}))) == 4
    assert sample(row, request(6, 6, temperature=0, min_tokens=2)) == EOS_ID


def test_a_row_where_everything_is_forbidden_still_gives_a_token() -> None:
    everything = frozenset(range(VOCAB))
    assert 0 <= sample(LOGITS[0], request(min_tokens=1, stop_token_ids=everything)) < VOCAB


def test_logprobs_are_the_models_own() -> None:
    found = logprob(LOGITS[6], 0, 5)
    expected = np.log(softmax(LOGITS[6]))
    assert found.token_id == 0
    assert found.logprob == pytest.approx(expected[0])
    assert [token_id for token_id, _ in found.top] == np.argsort(-expected)[:5].tolist()
    assert [each for _, each in found.top] == pytest.approx(np.sort(expected)[::-1][:5].tolist())


def test_logprobs_of_a_vocabulary_smaller_than_asked_for() -> None:
    assert len(logprob(LOGITS[0, :3], 1, 20).top) == 3
    assert logprob(LOGITS[0], 1, 0).top == ()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_numbers_is_known_and_spoils_no_other(value: float) -> None:
    logits = LOGITS[:3].copy()
    logits[1, 7] = value
    rows = Rows(logits)
    assert rows.is_valid == [True, False, True]
    assert sample_row(rows, 2, row_of(request(temperature=0)), None, EOS_IDS) == LOGITS[2].argmax()


def test_a_row_of_nothing_is_not_sound() -> None:
    assert Rows(np.full((1, VOCAB), -np.inf, np.float32)).is_valid == [False]


def test_a_row_knows_the_tokens_before_it_whoever_has_them() -> None:
    made = request(5, 6)
    row = SampleRow(made, 8, [7, 8, 9])
    assert row.token_ids().tolist() == [1, 2, 3, 5, 6, 7, 8, 9]
    made.token_ids.extend([7, 8])  # two of the drafts were right
    assert row.token_ids().tolist() == [1, 2, 3, 5, 6, 7, 8, 9]
    made.token_ids.extend([9, 10])
    assert row.token_ids().tolist() == [1, 2, 3, 5, 6, 7, 8, 9]
    assert row.num_output == 5
