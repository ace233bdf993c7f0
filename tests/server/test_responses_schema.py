"""What `/v1/responses` answers, held against OpenAI's own description of it; HOTLOOP_OPENAI_SPEC says where that is."""

from typing import Any

import pytest
from tests.chat.reasoning_templates import thinking_template
from tests.server.asking import TOOLS, ask, check_events
from tests.server.calls import WEATHER, write_call
from tests.server.serving import Serving, only
from tests.server.test_builtin_tools import CALLS, tool
from tests.server.test_openai_schema import SPEC, SchemaCheck, check
from tests.server.test_responses_codex import APPLY_PATCH

__all__ = ["check"]

pytestmark = pytest.mark.skipif(not SPEC, reason="HOTLOOP_OPENAI_SPEC is not set")

CASES: dict[str, dict[str, Any]] = {
    "text": only("a"),
    "logprobs": {"top_logprobs": 2, **only("a")},
    "calls": {"tools": TOOLS, "tool_choice": "required", "max_output_tokens": 300},
    "custom": {"tools": [APPLY_PATCH], "tool_choice": "required", "max_output_tokens": 300},
    **{
        kind: {"tools": [tool(kind)], "tool_choice": "required", "max_output_tokens": 600}
        for kind in ("shell", "local_shell", "apply_patch", "computer", "computer_use_preview")
    },
    "hosted": {"tools": [*TOOLS, {"type": "web_search"}], **only("a")},
    "effort": {"reasoning": {"effort": "xhigh"}, **only("a")},
    "shape": {"text": {"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}, "max_output_tokens": 300},
    "echo": {"instructions": "x", "metadata": {"a": "b"}, "user": "u", "prompt_cache_key": "k", "service_tier": "flex"},
}


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_responses(serving: Serving, check: SchemaCheck, fields: dict[str, Any]) -> None:
    made = ask(serving, **fields).json()
    check("Response", made)
    check("Response", serving.http.get(f"/v1/responses/{made['id']}").json())
    for event in check_events(ask(serving, stream=True, **fields).text):
        check("ResponseStreamEvent", event)


THOUGHTS: dict[str, dict[str, Any]] = {
    "text": {},
    "summary": {"reasoning": {"effort": "low", "summary": "detailed"}},
    "sealed": {"include": ["reasoning.encrypted_content"]},
    "cut": {"max_output_tokens": 20, "reasoning": {"summary": "auto"}},
}


@pytest.mark.parametrize("fields", THOUGHTS.values(), ids=THOUGHTS)
def test_thoughts(check: SchemaCheck, fields: dict[str, Any]) -> None:
    script = ["<think>\nI had better ask.\n</think>\n\nLet me see.\n" + write_call("clock")]
    asked = {"tools": TOOLS, "max_output_tokens": 300, **fields}
    with Serving(script=script, template=thinking_template()) as serving:
        check("Response", ask(serving, **asked).json())
        for event in check_events(ask(serving, stream=True, **asked).text):
            check("ResponseStreamEvent", event)


def test_input_items(serving: Serving, check: SchemaCheck) -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "I see."},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "x"},
    ]
    for i, (kind, _, item, output) in enumerate(CALLS.values()):
        items.append({"type": kind, "call_id": f"b{i}", "status": "completed", **item})
        items.append({"type": f"{kind}_output", "call_id": f"b{i}", "output": output, "status": "completed"})
    made = ask(serving, input=items).json()
    listed = serving.http.get(f"/v1/responses/{made['id']}/input_items").json()
    assert len(listed["data"]) == len(items)
    check("ResponseItemList", listed)


def test_errors(serving: Serving, check: SchemaCheck) -> None:
    for response in (ask(serving, input=7), serving.http.get("/v1/responses/resp_1")):
        check("ErrorResponse", response.json())


def test_in_the_background(serving: Serving, check: SchemaCheck) -> None:
    check("Response", ask(serving, background=True).json())
    for event in check_events(ask(serving, background=True, stream=True).text):
        check("ResponseStreamEvent", event)


def test_a_compaction(check: SchemaCheck) -> None:
    asked = {"input": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "hello"}]}
    with Serving(script=["All of it."]) as serving:
        check("CompactResource", serving.http.post("/v1/responses/compact", json=asked).json())


def test_input_tokens(serving: Serving, check: SchemaCheck) -> None:
    check("TokenCountsResource", serving.http.post("/v1/responses/input_tokens", json={"input": "hello"}).json())
