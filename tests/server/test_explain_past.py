"""Which of the prompts read lately another one is most like."""

import random

from hypothesis import given
from hypothesis import strategies as st

from hotloop.chat.compare import token_array
from hotloop.http.keys import Tenant
from hotloop.server.explain.past import Past, PastPrompt
from hotloop.server.tenants import Caller


def caller(name: str, scope: str, session_id: str = "") -> Caller:
    return Caller(Tenant(name), scope, session_id)


ANNA = caller("anna", "")


def tokens(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(count)]


def keep(past: Past, name: str, token_ids: list[int], caller: Caller = ANNA) -> None:
    past.add(PastPrompt(name, caller, token_array(token_ids), len(token_ids)))
    past.check()


def like(past: Past, token_ids: list[int], caller: Caller = ANNA) -> str | None:
    found = past.find_like(token_array(token_ids), caller)
    return found.answer_id if found else None


def test_nothing_is_like_it() -> None:
    past = Past(100_000)
    assert like(past, tokens(0, 500)) is None
    keep(past, "other", tokens(1, 500))
    assert like(past, tokens(0, 500)) is None
    assert like(past, []) is None


def test_the_prompt_that_has_most_in_common() -> None:
    past = Past(100_000)
    system = tokens(0, 500)
    for i in range(20):
        keep(past, f"agent {i}", system + tokens(100 + i, 300))
    for i in range(20):
        assert like(past, system + tokens(100 + i, 300) + tokens(i, 50)) == f"agent {i}"


def test_of_equally_like_ones_the_latest() -> None:
    past = Past(100_000)
    for name in ("one", "two"):
        keep(past, name, tokens(0, 500))
    assert like(past, tokens(0, 600)) == "two"


def test_what_was_prefilled_after_it_was_asked_is_not_earlier() -> None:
    past, token_ids = Past(100_000), token_array(tokens(0, 500))
    past.add(PastPrompt("earlier", ANNA, token_ids[:300], 300, added_at=1.0))
    past.add(PastPrompt("sibling", ANNA, token_ids, 500, added_at=3.0))
    for asked_at, name in ((0.5, None), (1.0, "earlier"), (2.0, "earlier"), (3.0, "sibling")):
        found = past.find_like(token_ids, ANNA, asked_at)
        assert (found.answer_id if found else None) == name


def test_a_change_at_the_top_hides_nothing() -> None:
    past = Past(100_000)
    keep(past, "hidden", [1, 2, 3, *tokens(0, 600)])
    for i in range(20):
        keep(past, f"other {i}", tokens(1 + i, 600))
    assert like(past, [4, *tokens(0, 600)]) == "hidden"


def test_short_prompts_are_found_among_the_latest_or_by_their_session() -> None:
    past = Past(100_000)
    agent = caller("anna", "", session_id="s")
    keep(past, "short", tokens(0, 20), agent)
    assert like(past, tokens(0, 20)) == "short"
    assert like(past, tokens(0, 10)) is None, "too little to call it like"
    assert like(past, [7, *tokens(0, 20)]) == "short"


def test_a_session_alone_does_not_decide() -> None:
    """Agents of one session may have nothing in common."""
    past = Past(100_000)
    agent = caller("anna", "", session_id="s")
    keep(past, "main", tokens(0, 500), agent)
    keep(past, "helper", tokens(1, 500), agent)
    assert like(past, tokens(0, 600), agent) == "main"
    assert like(past, tokens(2, 600), agent) is None


def test_scopes_and_owners() -> None:
    past = Past(100_000)
    keep(past, "secret", tokens(0, 500), caller("anna", "theirs"))
    keep(past, "open", tokens(1, 500), ANNA)
    assert like(past, tokens(0, 500)) is None
    assert like(past, tokens(0, 500), caller("anna", "theirs")) == "secret"
    assert like(past, tokens(0, 500), caller("bob", "theirs")) is None
    assert past.find("open", ANNA)
    assert past.find("open", caller("bob", "")) is None
    assert past.find("secret", ANNA) is None
    assert past.find("nonsense", ANNA) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200), st.integers(0, 2)), max_size=30))
def test_memory_is_bounded(added: list[tuple[int, int, int]]) -> None:
    past = Past(500)
    for seed, count, number in added:
        keep(past, f"answer {seed}", tokens(seed, count), caller("anna", str(number), session_id=str(seed)))
