"""What was used last is kept."""

from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.shelf import Shelf


def test_what_was_asked_for_is_kept_longer() -> None:
    shelf: Shelf[str, int] = Shelf(60)
    shelf.put("a", 1, 10)
    shelf.put("b", 2, 10)
    assert shelf.find("a") == 1
    shelf.put("c", 3, 10)
    assert (shelf.find("a"), shelf.find("b"), shelf.find("c")) == (1, None, 3)


def test_what_is_too_large_is_not_kept() -> None:
    shelf: Shelf[str, int] = Shelf(60)
    shelf.put("a", 1, 100)
    assert len(shelf) == shelf.currsize == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans())))
def test_the_cost_is_what_it_holds(steps: list[tuple[int, int, bool]]) -> None:
    shelf: Shelf[int, int] = Shelf(100)
    for key, cost, is_put in steps:
        if is_put:
            shelf.put(key, cost, cost)
        else:
            shelf.find(key)
        assert shelf.currsize <= 100
