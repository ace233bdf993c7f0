"""What was used last is kept."""

from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.lru import LruCache


def test_what_was_asked_for_is_kept_longer() -> None:
    cache: LruCache[str, int] = LruCache(60)
    cache.put("a", 1, 10)
    cache.put("b", 2, 10)
    assert cache.find("a") == 1
    cache.put("c", 3, 10)
    assert (cache.find("a"), cache.find("b"), cache.find("c")) == (1, None, 3)


def test_what_is_too_large_is_not_kept() -> None:
    cache: LruCache[str, int] = LruCache(60)
    cache.put("a", 1, 100)
    assert len(cache) == cache.currsize == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans())))
def test_the_cost_is_what_it_holds(steps: list[tuple[int, int, bool]]) -> None:
    cache: LruCache[int, int] = LruCache(100)
    for key, cost, is_put in steps:
        if is_put:
            cache.put(key, cost, cost)
        else:
            cache.find(key)
        assert cache.currsize <= 100
