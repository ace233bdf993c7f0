"""Every token of a prompt is accounted for, once."""

from hypothesis import given
from hypothesis import strategies as st

from hotloop.chat.compare import compare, token_array
from hotloop.core.retention import Eviction
from hotloop.server.account import PromptAccount, account_for

BLOCK = 4
GONE = Eviction(1.0, "somebody-0")

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def account(
    prompt: list[int], earlier: list[int] | None, num_cached: int, eviction: Eviction | None = None
) -> PromptAccount:
    comparison = None
    if earlier is not None:
        comparison = compare(token_array(prompt), token_array(earlier), lambda token_id: bytes([97 + token_id]))
    return account_for(comparison, num_prompt=len(prompt), num_cached=num_cached, block_size=BLOCK, eviction=eviction)


def causes(account: PromptAccount) -> dict[str, int]:
    return {cause.reason: cause.num_tokens for cause in account.causes}


@given(tokens, st.none() | tokens, st.integers(0, 60), st.sampled_from([None, GONE]))
def test_counts_add_up(prompt: list[int], earlier: list[int] | None, cached: int, eviction: Eviction | None) -> None:
    told = account(prompt, earlier, min(cached, len(prompt) - 1), eviction)
    assert told.num_prompt == told.num_cached + told.num_new + told.num_recomputed
    assert min(told.num_new, told.num_recomputed, told.num_block) >= 0
    assert told.num_recomputed == sum(tokens for reason, tokens in causes(told).items() if reason != "cold")
    assert all(tokens > 0 or reason in ("diverged", "retokenised") for reason, tokens in causes(told).items())
    assert told.num_block <= BLOCK
    assert ("cold" in causes(told)) == (earlier is None)


def test_nothing_like_it() -> None:
    told = account([1] * 10, None, 0)
    assert (causes(told), told.num_new) == ({"cold": 10}, 10)


def test_the_last_block_and_the_last_token() -> None:
    """Nobody could have kept those."""
    assert causes(account([1] * 10, [1] * 10, 8)) == {"block": 2}
    assert causes(account([1] * 8, [1] * 8, 4)) == {"block": 4}
    grown = account([1] * 10 + [2] * 5, [1] * 10, 8)
    assert (causes(grown), grown.num_new) == ({"block": 2}, 5)


def test_given_up_or_never_kept() -> None:
    assert causes(account([1] * 10, [1] * 10, 4)) == {"capacity": 4, "block": 2}
    assert causes(account([1] * 10, [1] * 10, 4, GONE)) == {"evicted": 4, "block": 2}


def test_changed_at_the_top() -> None:
    rest = [1, 2] * 20
    told = account([0, *rest], [1, *rest], 0)
    assert (causes(told), told.num_new) == ({"diverged": 40}, 1)


def test_what_another_prompt_had_in_the_cache_is_not_recomputed() -> None:
    rest = [1, 2] * 20
    assert causes(account([0, *rest], [1, *rest], 20)) == {"diverged": 21}
    assert causes(account([0, *rest], [1, *rest], 41)) == {"diverged": 0}
