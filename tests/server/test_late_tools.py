"""Tools that come while a conversation goes on are told of where they came: what was cached is still good."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.server.calls import write_call
from tests.server.serving import MODEL, Serving

from hotloop.core.config import ServerConfig

RULES = "You are a careful coding agent. " * 300
LISTING = "".join(f"src/module_{i}.py: {i * 37} lines\n" for i in range(1_300))
TARGET = 0.97  # of a later prompt is cached

HEAD = [f"builtin_{i}" for i in range(12)]
LATE = [f"mcp__server__tool_{i}" for i in range(100)]
FOUND = [[LATE[7], LATE[3]], [LATE[55]], [LATE[98]]]  # by one search after the other
SEARCH = write_call("ToolSearch", path="tools")
SCRIPT = [SEARCH, SEARCH, SEARCH, write_call(LATE[55], path="a.py"), "Done."]


def function(name: str, num_words: int = 8) -> dict[str, Any]:
    path = {"type": "string", "description": f"Path that {name} is to look at."}
    parameters = {"type": "object", "properties": {"path": path}, "required": ["path"]}
    return {
        "name": name,
        "description": f"Looks at it with {name}." + " Carefully." * num_words,
        "parameters": parameters,
    }


def claude_tool(name: str, num_words: int = 8, **fields: Any) -> dict[str, Any]:
    tool = function(name, num_words)
    return {"name": name, "description": tool["description"], "input_schema": tool["parameters"], **fields}


def item_tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", **function(name), **fields}


@contextmanager
def saying(*script: str, **fields: Any) -> Iterator[Serving]:
    with Serving(script=script, num_blocks=16_384, **fields) as serving:
        yield serving


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = http.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


class Turns:
    """A conversation over one of the APIs: what the user and the tools say, and which tools there are."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        self.history: list[Any] = []
        self.counts: list[tuple[int, int]] = []
        """Tokens of each prompt, and how many of them were cached."""

    @property
    def shares(self) -> list[float]:
        return [num_cached / num_prompt for num_prompt, num_cached in self.counts[1:]]

    @property
    def num_recomputed(self) -> int:
        """How many tokens were computed again: a prompt begins with all that the one before it had."""
        pairs = zip(self.counts, self.counts[1:], strict=False)
        return sum(max(num_before - num_cached, 0) for (num_before, _), (_, num_cached) in pairs)


class Messages(Turns):
    def ask(self, said: list[Any], tools: list[Any]) -> list[tuple[str, str]]:
        """The names of the tools it calls, and the ids of the calls."""
        self.history += said
        answer = post(self.http, "/v1/messages", max_tokens=400, system=RULES, tools=tools, messages=self.history)
        self.history.append({"role": "assistant", "content": answer["content"]})
        usage = answer["usage"]
        self.counts.append((usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]))
        return [(block["name"], block["id"]) for block in answer["content"] if block["type"] == "tool_use"]

    def tool(self, name: str) -> Any:
        return claude_tool(name)

    def result(self, call_id: str, text: str) -> Any:
        return result(call_id, text)


class Items(Turns):
    def ask(self, said: list[Any], tools: list[Any]) -> list[tuple[str, str]]:
        self.history += said
        answer = post(self.http, "/v1/responses", instructions=RULES, tools=tools, input=self.history, store=False)
        self.history += answer["output"]
        usage = answer["usage"]
        self.counts.append((usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]))
        return [(item["name"], item["call_id"]) for item in answer["output"] if item["type"] == "function_call"]

    def tool(self, name: str) -> Any:
        return item_tool(name)

    def result(self, call_id: str, text: str) -> Any:
        return {"type": "function_call_output", "call_id": call_id, "output": text}


class Chat(Turns):
    def ask(self, said: list[Any], tools: list[Any]) -> list[tuple[str, str]]:
        self.history = (self.history or [{"role": "system", "content": RULES}]) + said
        answer = post(self.http, "/v1/chat/completions", tools=tools, messages=self.history, max_tokens=400)
        message = answer["choices"][0]["message"]
        self.history.append(message)
        usage = answer["usage"]
        self.counts.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
        return [(call["function"]["name"], call["id"]) for call in message.get("tool_calls") or []]

    def tool(self, name: str) -> Any:
        return {"type": "function", "function": function(name)}

    def result(self, call_id: str, text: str) -> Any:
        return {"role": "tool", "tool_call_id": call_id, "content": text}


def result(call_id: str, content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": content}]}


def references(*names: str) -> list[Any]:
    return [{"type": "tool_reference", "tool_name": name} for name in names]


def run_search_session(http: httpx.Client, *, declares_all: bool) -> Messages:
    """Claude Code sends of its deferred tools those that were found; others send all of them."""
    turns = Messages(http)
    said: list[Any] = [{"role": "user", "content": LISTING}]
    called = []
    for i in range(len(SCRIPT)):
        found = [name for names in FOUND[:i] for name in names]
        deferred = [claude_tool(name, defer_loading=True) for name in sorted(LATE if declares_all else found)]
        calls = turns.ask(said, [claude_tool("ToolSearch"), *deferred, *map(claude_tool, HEAD)])
        called += [name for name, _ in calls]
        for _, call_id in calls:
            said = [result(call_id, references(*FOUND[i]) if i < len(FOUND) else "12 lines")]
    assert called == ["ToolSearch"] * 3 + [LATE[55]]
    return turns


@pytest.mark.sampled(2)
@pytest.mark.parametrize("declares_all", [False, True])
def test_a_long_session_with_deferred_tools(declares_all: bool) -> None:
    with saying(*SCRIPT) as serving:
        turns = run_search_session(serving.http, declares_all=declares_all)
    assert turns.counts[-1][0] > 55_000
    assert min(turns.shares) >= TARGET, turns.counts
    assert turns.num_recomputed < 16 * len(SCRIPT)  # the rest of a block


GROWN = ["mcp__a__open", "mcp__b__close"]
GROWTH = [write_call(name, path="a") for name in (HEAD[0], GROWN[0], HEAD[0], HEAD[1])] + ["Done."]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("api", [Messages, Items, Chat])
def test_tools_that_appear_without_a_mark(api: type[Any]) -> None:
    """As Codex has it, whose MCP servers start slowly; in the end one of them goes again."""
    with saying(*GROWTH) as serving:
        turns = api(serving.http)
        said: list[Any] = [{"role": "user", "content": LISTING}]
        called = []
        for names in ([], GROWN[:1], GROWN, GROWN, GROWN[1:]):
            calls = turns.ask(said, [turns.tool(name) for name in sorted(HEAD + names)])
            called += [name for name, _ in calls]
            said = [turns.result(call_id, "12 lines") for _, call_id in calls]
    assert called == [HEAD[0], GROWN[0], HEAD[0], HEAD[1]]
    assert turns.counts[-1][0] > 50_000
    assert min(turns.shares) >= TARGET, turns.counts
    assert turns.num_recomputed < 16 * len(GROWTH)


def test_switched_off_they_are_listed_with_the_others() -> None:
    with saying(*SCRIPT, config=ServerConfig(port=0, late_tools=False)) as serving:
        turns = run_search_session(serving.http, declares_all=True)
    assert max(turns.shares[:3]) < 0.5
