"""A coding agent's body, with all that it sends besides what is documented."""

from tests.server.calls import WEATHER, write_call
from tests.server.claude import read_events
from tests.server.serving import MODEL, Serving

EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


GREP = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "pattern": {"description": "The pattern to look for", "type": "string"},
        "output_mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
        "-A": {"type": "number"},
        "head_limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        "url": {"type": "string", "format": "uri"},
        "todos": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"content": {"type": "string", "minLength": 1}, "status": {"enum": ["pending", "done"]}},
                "required": ["content", "status"],
                "additionalProperties": False,
            },
        },
        "metadata": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
    },
    "required": ["pattern"],
    "additionalProperties": False,
}


def test_a_body_as_a_coding_agent_sends_it() -> None:
    grep = write_call("Grep", pattern="TODO", output_mode="count")
    kept = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
    tools = [{"name": f"Tool{i}", "description": "d", "input_schema": WEATHER} for i in range(15)]
    tools.append({"name": "Grep", "description": "Search", "input_schema": GREP, "eager_input_streaming": True, **kept})
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.py\nb.py"},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "content": [{"type": "text", "text": "No such file"}],
            "is_error": True,
        },
        {"type": "text", "text": "<system-reminder>Mind the gap.</system-reminder>", **EPHEMERAL},
    ]
    called = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "eA=="},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "Grep", "input": {"pattern": "x"}, "caller": {"type": "direct"}},
        {"type": "tool_use", "id": "toolu_2", "name": "Tool1", "input": {"city": "Rome", "days": 1}},
    ]
    body = {
        "model": MODEL,
        "max_tokens": 32_000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0;"},
            {"type": "text", "text": "You are a coding agent.", **kept},
            {"type": "text", "text": "Environment: a test.", **kept},
        ],
        "messages": [
            {"role": "user", "content": "<available-deferred-tools>none</available-deferred-tools>"},
            {"role": "user", "content": [{"type": "text", "text": "Find it."}, {"type": "text", "text": "Now."}]},
            {"role": "assistant", "content": called},
            {"role": "user", "content": results},
        ],
        "tools": tools,
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "temperature": 1,
        "stream": True,
    }
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,context-management-2025-06-27",
        "x-app": "cli",
        "authorization": "Bearer x",
    }
    with Serving(script=["-", grep]) as serving:
        response = serving.http.post("/v1/messages?beta=true", json=body, headers=headers)
        counted = serving.http.post("/v1/messages/count_tokens?beta=true", json=body, headers=headers).json()
        assert response.status_code == 200, response.text
        events = read_events(response.text)
        again = read_events(serving.http.post("/v1/messages?beta=true", json=body, headers=headers).text)
    opened = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["name"] for block in opened] == ["Grep"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    first, second = (stream[0]["message"]["usage"] for stream in (events, again))
    assert first["cache_creation_input_tokens"] + first["input_tokens"] == counted["input_tokens"]
    assert first["input_tokens"] < 20, "what the template writes behind the last breakpoint"
    num_counted = sum(second[f"{name}input_tokens"] for name in ("", "cache_read_", "cache_creation_"))
    assert num_counted == counted["input_tokens"]
    assert second["cache_read_input_tokens"] > 0.9 * counted["input_tokens"]
