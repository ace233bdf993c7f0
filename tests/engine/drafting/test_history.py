import random
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.tiny import TOKENIZER, VOCAB_SIZE, make_request

from hotloop.engine.drafting.drafter import DraftRequest, Proposal
from hotloop.engine.drafting.history import MAX_MATCH, PastDrafter, SuffixHistory


def learn(history: SuffixHistory | PastDrafter, token_ids: list[int], num_cached: int = 0, **changes: Any) -> None:
    request = make_request(token_ids[:1], **changes)
    request.token_ids.extend(token_ids[1:])
    request.num_cached = num_cached
    history.learn(request)


def look_up(history: SuffixHistory, token_ids: list[int], max_tokens: int = 4, *owner: str) -> Proposal:
    return history.propose(array("i", token_ids), max_tokens, *owner)


def test_a_request_goes_on_as_an_earlier_one_did() -> None:
    history = SuffixHistory(100)
    learn(history, [1, 2, 3, 4, 5, 6, 7, 8])
    assert look_up(history, [9, 2, 3]) == Proposal([4, 5, 6, 7], 2)
    assert look_up(history, [1, 2, 3, 4, 5], 2) == Proposal([6, 7], 5)


@pytest.mark.parametrize("token_ids", [[3], [3, 2], [9, 9, 9, 9, 9, 9, 9, 9], [7, 8]])
def test_what_nobody_wrote_is_not_drafted(token_ids: list[int]) -> None:
    history = SuffixHistory(100)
    learn(history, [1, 2, 3, 4, 5, 6, 7, 8])
    assert look_up(history, token_ids).token_ids == []


def test_the_longest_run_wins_then_the_latest() -> None:
    history = SuffixHistory(100)
    learn(history, [1, 2, 3, 4, 10])
    learn(history, [3, 4, 11])
    learn(history, [3, 4, 12])
    assert look_up(history, [1, 2, 3, 4], 1) == Proposal([10], 4)
    assert look_up(history, [0, 3, 4], 1) == Proposal([12], 2)


def test_a_session_is_asked_first() -> None:
    history = SuffixHistory(100)
    learn(history, [3, 4, 11], session_id="mine")
    learn(history, [3, 4, 12], session_id="yours")
    assert look_up(history, [3, 4], 1, "mine") == Proposal([11], 2)
    assert look_up(history, [3, 4], 1) == look_up(history, [3, 4], 1, "new") == Proposal([12], 2)


def test_nothing_is_drafted_from_the_past_of_another_salt() -> None:
    history = SuffixHistory(100)
    learn(history, [3, 4, 11], session_id="mine", salt="a")
    for session_id in ("mine", "", "a"):
        assert look_up(history, [3, 4], 1, session_id) == Proposal()
        assert look_up(history, [3, 4], 1, session_id, "b") == Proposal()
        assert look_up(history, [3, 4], 1, session_id, "a") == Proposal([11], 2)


def test_not_even_where_two_salts_share_a_place() -> None:
    history = SuffixHistory(100)
    learn(history, [3, 4, 11], salt="a")
    history._places[:] = history._places.max()
    assert look_up(history, [4, 11], 1, "", "b").match == 0
    assert look_up(history, [4, 11], 1, "", "a").match == 2


def test_where_things_are_does_not_depend_on_the_process() -> None:
    """As it did by `hash`: in one process of a hundred a session's run shared its place with another's."""
    history = SuffixHistory(100)
    learn(history, [3, 4, 11], session_id="mine", salt="a")
    assert np.flatnonzero(history._places).tolist() == [89, 505, 678, 845]


def test_what_was_cached_is_remembered_once_but_for_a_bridge() -> None:
    history = SuffixHistory(1000)
    shared = list(range(100, 200))
    learn(history, [*shared, 1], num_cached=100)
    assert look_up(history, shared[:50]).token_ids == []
    assert look_up(history, shared) == Proposal([1], MAX_MATCH)


def test_a_draft_ends_with_its_request() -> None:
    history = SuffixHistory(100)
    learn(history, [1, 2, 3])
    learn(history, [4, 5, 6])
    assert look_up(history, [1, 2]) == Proposal([3], 2)


def test_the_oldest_is_forgotten_first_and_memory_stays() -> None:
    history = SuffixHistory(64)
    size = len(history._ring), len(history._places)
    for first in range(0, 1000, 10):
        learn(history, list(range(first, first + 10)))
    assert look_up(history, [990, 991], 2) == Proposal([992, 993], 2)
    assert look_up(history, [0, 1]) == Proposal([], 0)
    assert (len(history._ring), len(history._places)) == size


def test_of_a_request_larger_than_the_store_the_end_is_remembered() -> None:
    history = SuffixHistory(20)
    learn(history, list(range(100)))
    assert look_up(history, [97, 98]) == Proposal([99], 2)
    assert look_up(history, [10, 11]) == Proposal([], 0)


def test_a_store_of_nothing_remembers_nothing() -> None:
    history = SuffixHistory(0)
    learn(history, [1, 2, 3, 4])
    assert look_up(history, [1, 2]) == Proposal([], 0)


@given(st.integers(0, 10_000), st.sampled_from([1, 7, 40, 300]))
def test_every_draft_is_something_that_was_learned(seed: int, max_tokens: int) -> None:
    rng = random.Random(seed)
    history = SuffixHistory(max_tokens)
    past: list[list[int]] = []
    for _ in range(30):
        token_ids = [rng.randrange(4) for _ in range(rng.randrange(1, 50))]
        found = look_up(history, token_ids, rng.randrange(1, 9), rng.choice(["", "a", "b"]))
        run = token_ids[len(token_ids) - found.match :] + found.token_ids
        assert not found.match or any(_contains(piece, run) for piece in past)
        learn(history, token_ids, session_id=rng.choice(["", "a", "b"]))
        past.append(token_ids)


def _contains(piece: list[int], run: list[int]) -> bool:
    return any(piece[i : i + len(run)] == run for i in range(len(piece) - len(run) + 1))


def propose(drafter: PastDrafter, token_ids: list[int], max_tokens: int = 8) -> list[int]:
    [proposal] = drafter.propose([DraftRequest(make_request(token_ids), array("i", token_ids), max_tokens)])
    return proposal.token_ids


def test_the_longer_of_own_and_past_matches_is_taken() -> None:
    drafter = PastDrafter(TOKENIZER, VOCAB_SIZE, 1000)
    learn(drafter, [1, 2, 3, 4, 20, 21])
    assert propose(drafter, [4, 30, 31, 1, 2, 3, 4]) == [20, 21]
    assert propose(drafter, [1, 2, 3, 4, 30, 31, 1, 2, 3, 4], 2) == [30, 31]  # its own, where they are equally long


def test_a_short_match_makes_a_short_draft() -> None:
    drafter = PastDrafter(TOKENIZER, VOCAB_SIZE, 1000)
    assert propose(drafter, [1, 2, 3, 4, 5, 6, 7, 1]) == [2, 3]
    assert propose(drafter, [1, 2, 3, 4, 5, 6, 7, 1, 2]) == [3, 4, 5, 6]


def test_a_match_can_be_too_short_to_count() -> None:
    drafter = PastDrafter(TOKENIZER, VOCAB_SIZE, 1000, min_match=2)
    assert propose(drafter, [1, 2, 3, 1]) == []
    assert propose(drafter, [1, 2, 3, 1, 2], 1) == [3]


def test_each_want_has_its_draft() -> None:
    drafter = PastDrafter(TOKENIZER, VOCAB_SIZE, 1000)
    wants = [DraftRequest(make_request([1]), array("i", token_ids), 4) for token_ids in ([1], [2, 3, 2])]
    assert drafter.propose(wants) == [Proposal(), Proposal([3, 2], 1)]
    drafter.close()
