"""What clients hint at, in their own words."""

import json
from typing import Any

import pytest

from hotloop.core.request import Priority
from hotloop.wire.hints import MAX_SESSION_ID, MAX_TASK_CHARS, Hints, parse_class, read_hints, shorten


def test_a_session_of_a_long_name_is_known_by_its_hash():
    long = "x" * 10_000_000
    names = {shorten(long + end) for end in ("", "a", "b", "\ud800")}
    assert len(names) == 4, "two that begin alike are still two"
    assert all(len(name) <= MAX_SESSION_ID for name in names)
    assert read_hints({"user": long}, {}) == read_hints({}, {"x-session-id": long})
    assert shorten("x" * MAX_SESSION_ID) == "x" * MAX_SESSION_ID


@pytest.mark.parametrize(
    ("body", "headers", "session", "parent"),
    [
        ({}, {}, "", ""),
        ({}, {"x-session-id": "b", "x-parent-session-id": "a", "x-session-affinity": "b"}, "b", "a"),
        ({}, {"x-claude-code-session-id": "s"}, "s", ""),
        ({}, {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "s/a", "s"),
        (
            {},
            {
                "x-claude-code-session-id": "s",
                "x-claude-code-agent-id": "a",
                "x-claude-code-parent-agent-id": "p",
            },
            "s/a",
            "s/p",
        ),
        ({}, {"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "p"}, "t", "p"),
        ({}, {"x-dynamo-session-id": "d", "x-dynamo-parent-session-id": "p"}, "d", "p"),
        ({"agent_hint": {"session_id": "h", "parent_session_id": "p"}}, {}, "h", "p"),
        ({}, {"x-agent-hint": json.dumps({"session_id": "h", "parent_session_id": "p"})}, "h", "p"),
        ({"session_params": {"id": "g"}}, {}, "g", ""),
        ({"session_id": "b", "parent_session_id": "p"}, {"x-session-id": "x"}, "b", "p"),
        ({"session_id": "b", "parent_session_id": "b"}, {}, "b", ""),
        ({"prompt_cache_key": "k", "user": "u"}, {}, "k", ""),
    ],
)
def test_sessions_and_their_parents(body: dict[str, Any], headers: dict[str, str], session: str, parent: str) -> None:
    hints = read_hints(body, headers)
    assert (hints.session, hints.parent) == (session, parent)


@pytest.mark.parametrize(
    ("body", "headers", "priority"),
    [
        ({}, {}, Priority.INTERACTIVE),
        ({"parent_session_id": "p"}, {}, Priority.WORKFLOW),
        ({"parent_session_id": "p"}, {"x-hotloop-task": "summary"}, Priority.BACKGROUND),
        ({"metadata": {"task": " Title "}}, {}, Priority.BACKGROUND),
        ({"metadata": {"task": "title"}, "priority": "interactive"}, {}, Priority.INTERACTIVE),
        ({"priority": 0}, {}, Priority.INTERACTIVE),
        ({"priority": 1}, {}, Priority.WORKFLOW),
        ({"priority": 100}, {}, Priority.BACKGROUND),
        ({"nvext": {"agent_hints": {"priority": 5}}}, {}, Priority.INTERACTIVE),
        ({"nvext": {"agent_hints": {"priority": -5}}}, {}, Priority.BACKGROUND),
        ({"nvext": {"agent_hints": {"priority": 0}}, "parent_session_id": "p"}, {}, Priority.WORKFLOW),
        ({}, {"x-agent-hint": '{"priority": "workflow"}'}, Priority.WORKFLOW),
        ({"service_tier": "flex"}, {}, Priority.BACKGROUND),
    ],
)
def test_classes(body: dict[str, Any], headers: dict[str, str], priority: Priority) -> None:
    assert read_hints(body, headers).priority is priority


def test_what_else_is_hinted_at() -> None:
    body = {"nvext": {"agent_hints": {"osl": 40, "speculative_prefill": True}}, "metadata": {"task": "Code_Generation"}}
    hints = read_hints(body, {"x-dynamo-session-final": "True"})
    assert (hints.num_output, hints.task, hints.is_final) == (40, "code_generation", True)
    assert read_hints(body, {"x-hotloop-task": "qa"}).task == "qa", "the header goes first"


@pytest.mark.parametrize("odd", [None, 3, "x", [], {}, {"agent_hints": 3}, {"agent_hints": {"osl": -1}}, 1e300, True])
def test_what_is_odd_counts_as_not_given(odd: Any) -> None:
    body = dict.fromkeys(("nvext", "agent_hint", "metadata", "session_params", "service_tier"), odd)
    assert read_hints(body, {"x-agent-hint": str(odd)}) == Hints()
    assert read_hints({}, {"x-agent-hint": "[" * 100_000, "x-hotloop-task": "t" * (MAX_TASK_CHARS + 1)}) == Hints()
    assert parse_class(odd) is (Priority.BACKGROUND if odd == 3 else None)
