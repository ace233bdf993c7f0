"""Which prompts go to which pool; and that sessions are spread by count."""

import random
from collections import Counter
from typing import Any

import pytest

from hotloop.router.placement.placement import ACTIVE_S, Placement
from hotloop.router.placement.policy import POLICIES, PromptDigest, ReplicaView
from hotloop.router.placement.pools import PoolRule

RULE = PoolRule(0.5, 1000)


def view(name: str, pool: str = "", matched: int = 0, *, is_home: bool = False) -> ReplicaView:
    return ReplicaView(name, matched_tokens=matched, is_home=is_home, pool=pool)


@pytest.mark.parametrize(
    ("matched", "num_tokens", "wanted"),
    [(0, 100, "light"), (999, 1000, "light"), (1000, 2000, "heavy"), (1000, 2001, "light"), (9000, 10_000, "heavy")],
)
def test_a_prompt_is_heavy_by_what_is_known_of_it(matched: int, num_tokens: int, wanted: str) -> None:
    views = [view("heavy", "prefix-heavy"), view("light", "prefix-light", matched)]
    [found] = RULE.narrow(views, PromptDigest(num_tokens=num_tokens))
    assert found.name == wanted


def test_a_session_stays_in_its_pool() -> None:
    views = [view("heavy", "prefix-heavy", is_home=True), view("light", "prefix-light")]
    assert [each.name for each in RULE.narrow(views, PromptDigest(num_tokens=10))] == ["heavy"]


def test_where_there_are_no_pools_or_none_is_free_any_replica_will_do() -> None:
    plain = [view("a"), view("b")]
    assert RULE.narrow(plain, PromptDigest(num_tokens=10)) == plain
    alone = [view("heavy", "prefix-heavy")]
    assert RULE.narrow(alone, PromptDigest(num_tokens=10)) == alone
    both = [view("heavy", "prefix-heavy"), view("any"), view("light", "prefix-light")]
    assert [each.name for each in RULE.narrow(both, PromptDigest(num_tokens=10))] == ["any", "light"]


def key(*blocks: Any) -> bytes:
    return b"".join(str(block).encode().ljust(8, b".")[:8] for block in blocks)


@pytest.mark.parametrize("seed", range(20))
def test_twelve_agents_with_one_beginning_are_spread_over_three_replicas(seed: int) -> None:
    placement, rng = Placement(POLICIES["prefix"], block_tokens=128, seed=seed), random.Random(seed)
    for name in "abc":
        placement.add_replica(name, capacity_tokens=1_000_000)
    turns = [agent for agent in range(12) for _ in range(10)]
    order = [*range(12), *rng.sample(turns, len(turns))]
    said, placed, homes = Counter[int](), Counter[str](), dict[int, set[str]]()
    for now, agent in enumerate(order):
        said[agent] += 1
        blocks = [*range(40), *(f"{agent}-{i}" for i in range(said[agent] * 4))]
        prompt = PromptDigest(key(*blocks), 128 * len(blocks), 50, f"agent {agent}")
        ticket = placement.place(prompt, now=now)
        assert ticket
        placed[ticket.choice.name] += 1
        homes.setdefault(agent, set()).add(ticket.choice.name)
        placement.begin(ticket)
        placement.finish(ticket, now=now)
        placement.check()
    assert max(placed.values()) <= 1.3 * len(order) / 3
    assert sum(len(each) > 1 for each in homes.values()) <= 2, "they stay where they are"


def test_sessions_that_have_gone_count_no_more() -> None:
    placement = Placement(POLICIES["least_load"], block_tokens=128)
    placement.add_replica("a", capacity_tokens=1000)
    for agent in range(5):
        assert placement.place(PromptDigest(key(agent), 128, 1, f"s{agent}"), now=float(agent))
    [seen] = placement._views.values()
    assert seen.num_sessions == 5
    assert placement.place(PromptDigest(key("x"), 128, 1, "s4"), now=ACTIVE_S + 3.5)
    assert seen.num_sessions == 1
    placement.remove_replica("a")
    placement.add_replica("b", capacity_tokens=1000)
    assert placement.place(PromptDigest(key("x"), 128, 1, "s4"), now=ACTIVE_S + 4)
    placement.check()
