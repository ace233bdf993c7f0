"""Which other replica a request may have the KV of its prompt from."""

from hotloop.router.placement.index import HASH_BYTES
from hotloop.router.placement.placement import Placement
from hotloop.router.placement.policy import POLICIES, PromptDigest

BLOCK_TOKENS = 128
PROMPT = PromptDigest(
    key=b"".join(number.to_bytes(HASH_BYTES, "big") for number in range(1, 11)),
    num_tokens=10 * BLOCK_TOKENS,
    session="s",
)


def placed() -> tuple[Placement, str, str]:
    """Two replicas, one of which had the prompt: that, and the other."""
    placement = Placement(POLICIES["prefix"], block_tokens=BLOCK_TOKENS, seed=1)
    for name in ("a", "b"):
        placement.add_replica(name, capacity_tokens=100_000)
    ticket = placement.place(PROMPT)
    assert ticket
    assert ticket.choice.source == ""
    placement.finish(ticket)
    home = ticket.choice.name
    return placement, home, "b" if home == "a" else "a"


def test_who_holds_much_more_of_a_prompt_than_the_one_chosen_is_named() -> None:
    placement, home, other = placed()
    for source in (home, ""):  # the second time it has as much itself
        ticket = placement.place(PROMPT, among=[other])
        assert ticket
        assert (ticket.choice.name, ticket.choice.source) == (other, source)
        placement.finish(ticket)
    placement.check()


def test_a_replica_that_is_retired_is_given_nothing_and_is_still_named() -> None:
    placement, home, other = placed()
    placement.retire_replica(home)
    ticket = placement.place(PROMPT)
    assert ticket
    assert (ticket.choice.name, ticket.choice.source) == (other, home)
    placement.finish(ticket)
    placement.remove_replica(home)
    placement.check()
    placement.add_replica(home, capacity_tokens=100_000)
    ticket = placement.place(PROMPT, among=[home])
    assert ticket
    assert (ticket.choice.matched_tokens, ticket.choice.source) == (0, other)
