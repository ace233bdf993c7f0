from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.tiny import EOS_ID, TOKENIZER, VOCAB_SIZE

from hotloop.engine.drafting.drafter import Proposal
from hotloop.engine.drafting.history import MAX_MATCH, MAX_SCAN, PromptLookup, token_classes

LOOKUP = PromptLookup(np.arange(100, dtype=np.int32))


def propose(token_ids: list[int], max_tokens: int = 4) -> Proposal:
    return LOOKUP.propose(array("i", token_ids), max_tokens)


def test_what_followed_before_follows_again() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 7, 1, 2, 3]) == Proposal([4, 5, 6, 7], 3)


def test_the_longest_match_wins() -> None:
    assert propose([1, 2, 3, 10, 9, 2, 3, 11, 1, 2, 3], 1) == Proposal([10], 3)


def test_of_equal_matches_the_latest_wins() -> None:
    assert propose([2, 3, 10, 2, 3, 11, 2, 3], 1) == Proposal([11], 2)


def test_a_draft_may_run_into_the_match_itself() -> None:
    assert propose([5, 6, 5, 6], 8) == Proposal([5, 6], 2)


@pytest.mark.parametrize("token_ids", [[1], [1, 2, 3]])
def test_what_is_new_is_not_drafted(token_ids: list[int]) -> None:
    assert propose(token_ids) == Proposal([], 0)


def test_a_match_is_counted_up_to_a_limit() -> None:
    run = list(range(50))
    assert propose([*run, 60, *run]) == Proposal([60, *run[:3]], MAX_MATCH)


def test_only_the_latest_tokens_are_looked_through() -> None:
    assert propose([7, 8] + [1] * MAX_SCAN + [7]) == Proposal([], 0)


def test_tokens_of_a_class_match_and_the_real_ones_are_proposed() -> None:
    classes = token_classes(TOKENIZER, VOCAB_SIZE)
    seen, asked = (array("i", TOKENIZER.encode(text)) for text in ("PARIS, ", "?paris"))
    assert PromptLookup(classes).propose(seen + asked, 2) == Proposal(TOKENIZER.encode(", "), 5)


def test_classes_ignore_case_and_keep_special_tokens_apart() -> None:
    classes = token_classes(TOKENIZER, VOCAB_SIZE + 3)
    [small], [large], [other] = map(TOKENIZER.encode, "aAb")
    assert classes[small] == classes[large] != classes[other]
    assert classes[EOS_ID] == EOS_ID
    assert [*classes[VOCAB_SIZE:]] == [VOCAB_SIZE, VOCAB_SIZE + 1, VOCAB_SIZE + 2]  # rows that have no token


@given(st.lists(st.integers(0, 3), min_size=1, max_size=80), st.integers(1, 8))
def test_it_finds_what_the_obvious_search_finds(token_ids: list[int], max_tokens: int) -> None:
    best, end = max((_count_match(token_ids[:end], token_ids), end) for end in range(len(token_ids)))
    expected = Proposal(token_ids[end : end + max_tokens], best) if best else Proposal()
    assert propose(token_ids, max_tokens) == expected


def _count_match(one: list[int], other: list[int]) -> int:
    match = 0
    while match < min(len(one), MAX_MATCH) and one[-1 - match] == other[-1 - match]:
        match += 1
    return match
