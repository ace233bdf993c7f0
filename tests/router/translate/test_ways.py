"""Which API is carried to which."""

import pytest

from hotloop.router.kinds import Api
from hotloop.router.translate import can_translate, translate


@pytest.mark.parametrize(
    ("api", "spoken"), [("completions", {"chat", "messages"}), ("messages", {"completions"}), ("chat", {"completions"})]
)
def test_there_is_not_always_a_way(api: Api, spoken: set[Api]) -> None:
    assert not can_translate(api, frozenset(spoken))


@pytest.mark.parametrize(
    ("api", "spoken", "path"),
    [
        ("messages", {"chat", "completions"}, "/v1/chat/completions"),
        ("chat", {"messages"}, "/v1/messages"),
        ("responses", {"chat", "messages"}, "/v1/chat/completions"),
        ("responses", {"messages"}, "/v1/messages"),
    ],
)
def test_where_there_is_one_it_leads_there(api: Api, spoken: set[Api], path: str) -> None:
    body = {"model": "m", "max_tokens": 1, "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
    assert can_translate(api, frozenset(spoken))
    translation = translate(api, frozenset(spoken), body)
    assert translation.request()[0] == path
