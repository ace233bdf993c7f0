"""Items by their ids: whose they are, which of them go, and that there are never too many."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import RequestError
from hotloop.http.keys import Tenant
from hotloop.wire.responses.items import ItemStore, UnknownItem

ME, YOU, ADMIN = Tenant("me"), Tenant("you"), Tenant("root", is_admin=True)
SAID = {"id": "msg_1", "type": "message", "role": "assistant", "content": "x"}
CALLED = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def refer(item_id: Any) -> Any:
    return {"type": "item_reference", "id": item_id}


def test_a_reference_is_the_item_for_its_owner_and_an_admin() -> None:
    store = ItemStore()
    store.keep([SAID, CALLED], "me")
    body = {"model": "m", "input": [refer("msg_1"), SAID, refer("fc_1")]}
    for tenant in (ME, ADMIN):
        assert store.resolve(body, tenant.may_see) == {"model": "m", "input": [SAID, SAID, CALLED]}
    with pytest.raises(UnknownItem) as caught:
        store.resolve(body, YOU.may_see)
    assert caught.value.param == "input[0]"
    store.drop([SAID])
    with pytest.raises(UnknownItem):
        store.resolve(body, ME.may_see)


@pytest.mark.parametrize(
    "given", [None, "text", 7, [], [7, "x", None, {"role": "user", "content": "x", "id": "msg_9"}]]
)
def test_an_input_without_names_is_left_as_it_is(given: Any) -> None:
    body = {"input": given}
    assert ItemStore().resolve(body, ME.may_see) is body


@pytest.mark.parametrize("item_id", [None, 7, ["x"]])
def test_an_id_that_is_none_is_refused(item_id: Any) -> None:
    with pytest.raises(RequestError) as caught:
        ItemStore().resolve({"input": [refer(item_id)]}, ME.may_see)
    assert not isinstance(caught.value, UnknownItem)


def test_the_one_not_asked_for_longest_goes_first() -> None:
    store = ItemStore(max_items=2)
    store.keep([SAID, CALLED], "me")
    store.resolve({"input": [refer("msg_1")]}, ME.may_see)
    store.keep([{**SAID, "id": "msg_2"}], "me")
    assert store.resolve({"input": [refer("msg_1"), refer("msg_2")]}, ME.may_see)["input"][0] == SAID
    with pytest.raises(UnknownItem):
        store.resolve({"input": [refer("fc_1")]}, ME.may_see)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900), st.booleans())))
def test_the_bounds_hold_whatever_happens(steps: list[tuple[int, int, bool]]) -> None:
    store = ItemStore(max_items=4, max_bytes=2000)
    for number, size, is_dropped in steps:
        item = {**SAID, "id": f"msg_{number}", "content": "x" * size}
        store.keep([item], "me")
        if is_dropped:
            store.drop([item])
        assert store._items.currsize <= 2000
        assert len(store) <= 4
