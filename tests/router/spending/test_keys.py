"""Named keys in front of a router: what each may have, and what is counted for it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.router.conftest import MESSAGES, Mirror, replica_configs

from hotloop.core.errors import ConfigError
from hotloop.core.request import Priority
from hotloop.http.keys import Key, KeyLimits, read_keys
from hotloop.router.config import ReplicaConfig

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}


def write(path: Path, *tables: str) -> str:
    path.write_text("\n".join(f"[[keys]]\n{table}" for table in tables))
    return str(path)


def test_named_keys_are_read_with_their_limits(tmp_path: Path) -> None:
    file = write(
        tmp_path / "keys.toml",
        'name = "anna"\nkey = "sk-a"\npriority = "workflow"\nmodels = ["small", "auto*"]\nrequests_per_minute = 3',
        'name = "root"\nkey = "sk-r"\nrole = "admin"\nmoney_per_month = 2.5',
    )
    anna, root = read_keys(None, file).keys
    limits = KeyLimits(priority=Priority.WORKFLOW, models=("small", "auto*"), requests_per_minute=3)
    assert anna == Key(b"sk-a", "tenant", "anna", limits)
    assert root == Key(b"sk-r", "admin", "root", KeyLimits(money_per_month=2.5))
    assert [limits.allows(model) for model in ("small", "auto-2", "large")] == [True, True, False]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ('name = "a"', "key must be a string"),
        ('key = "k"', "name must be a string"),
        ('name = "a"\nkey = "k"\nrole = "king"', "no role 'king'"),
        ('name = "a"\nkey = "k"\npriority = "first"', "no class 'first'"),
        ('name = "a"\nkey = "k"\nmodels = "m"', "models must be a list"),
        ('name = "a"\nkey = "k"\nrequests_per_minute = -1', "must be a number"),
        ('name = "a"\nkey = "k"\nrequests_per_minute = 1.5', "must be a number"),
        ('name = "a"\nkey = "k"\nmoney_per_month = inf', "must be a number"),
        ('name = "a"\nkey = "k"\nper_day = 1', "there is no key 'per_day'"),
        ('name = "a"\nkey = "k"\n[[keys]]\nname = "a"\nkey = "l"', "two API keys are called 'a'"),
        ('name = "a"\nkey = "k"\n[[keys]]\nname = "b"\nkey = "k"', "has the same API key as another"),
        ('name = "a"\nkey = "k"\n[more]', r"write \[\[keys\]\]"),
    ],
)
def test_what_is_wrong_with_them_is_named(tmp_path: Path, table: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        read_keys(None, write(tmp_path / "keys.toml", table))


def key(name: str, **limits: Any) -> str:
    lines = [f"{word} = {json.dumps(value)}" for word, value in limits.items()]
    return "\n".join((f'name = "{name}"', f'key = "sk-{name}"', *lines))


async def ask(router: Any, who: str, path: str = CHAT, **fields: Any) -> httpx.Response:
    body = {"model": "own-name", "messages": MESSAGES, **fields}
    headers = {"authorization": f"Bearer sk-{who}"}
    response: httpx.Response = await router.client.post(path, json=body, headers=headers)
    return response


@pytest.fixture
def keyed(mirror: Mirror, route: Any, tmp_path: Path) -> Any:
    async def start(*tables: str, kind: str = "vllm", **settings: Any) -> Any:
        file = write(tmp_path / "keys.toml", *tables)
        mirror.reply = 200, {"id": "1", "choices": [], "usage": USAGE}
        return await route((ReplicaConfig(url=mirror.url, name="r", kind=kind),), api_key_file=file, **settings)

    return start


async def test_a_limit_is_exact_however_many_ask_at_once(keyed: Any, mirror: Mirror) -> None:
    router = await keyed(key("anna", requests_per_minute=7), key("bob"))
    answers = await asyncio.gather(*(ask(router, who) for who in ["anna", "bob"] * 20))
    statuses = [answer.status_code for answer in answers]
    assert (statuses[::2].count(200), statuses[::2].count(429)) == (7, 13)
    assert statuses[1::2] == [200] * 20
    assert len(mirror.seen) == 27
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "quota_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60


async def test_anthropics_clients_are_told_that_it_is_their_limit(keyed: Any) -> None:
    router = await keyed(key("anna", requests_per_minute=0))
    answer = await ask(router, "anna", "/v1/messages", max_tokens=5)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")


async def test_what_is_refused_is_not_put_in_a_stable_form(keyed: Any) -> None:
    router = await keyed(key("anna", requests_per_minute=1), stabilise=True)
    tools = [{"type": "function", "function": {"name": name}} for name in "ba"]
    answers = [await ask(router, "anna", tools=tools) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert ["x-hotloop-stabilised" in answer.headers for answer in answers] == [True, False, False]
    assert dict(router.server.app._stable.num_changes) == {"tools": 1}


async def test_tokens_are_those_of_the_answer(keyed: Any) -> None:
    router = await keyed(key("anna", tokens_per_minute=300))
    assert [(await ask(router, "anna")).status_code for _ in range(4)] == [200, 200, 200, 429]


async def test_models_that_a_key_may_not_use_are_not_there_for_it(keyed: Any) -> None:
    router = await keyed(key("anna", models=["other*"]), key("bob"))
    answer = await ask(router, "anna")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_allowed")
    listed = {}
    for who in ("anna", "bob"):
        page = await router.client.get("/v1/models", headers={"x-api-key": f"sk-{who}"})
        listed[who] = [each["id"] for each in page.json()["data"]]
    assert listed == {"anna": [], "bob": ["own-name"]}


@pytest.mark.parametrize("asked", [{}, {"priority": "interactive"}, {"priority": -5}, {"priority": "background"}])
async def test_no_request_is_of_a_more_urgent_class_than_its_key(keyed: Any, mirror: Mirror, asked: Any) -> None:
    router = await keyed(key("anna", priority="workflow"), kind="hotloop")
    assert (await ask(router, "anna", **asked)).status_code == 200
    sent = mirror.seen[-1]
    given = json.loads(sent["raw"]).get("priority") or sent["headers"].get("x-hotloop-priority")
    assert given == ("background" if asked.get("priority") == "background" else "workflow")


async def test_what_was_spent_is_counted_by_key_and_model(keyed: Any, tmp_path: Path) -> None:
    file = tmp_path / "spend.json"
    router = await keyed(key("anna"), key("root", role="admin"), spend_file=str(file))
    for _ in range(2):
        await ask(router, "anna", session_id="s")
    page = (await router.client.get("/metrics", headers={"x-api-key": "sk-root"})).text
    place = 'key="anna",model="own-name"'
    assert f"hotloop_router_spent_requests_total{{{place}}} 2.0" in page
    counts = {"new": 80.0, "cached": 120.0, "output": 40.0}
    for kind, number in counts.items():
        assert f'hotloop_router_spent_tokens_total{{key="anna",kind="{kind}",model="own-name"}} {number}' in page
    router.server.app.spending.book.write()
    [line] = json.loads(file.read_bytes())["spent"]
    assert (line["key"], line["tree"], line["requests"], line["prompt"], line["output"]) == ("anna", "s", 2, 200, 40)


async def test_what_failed_costs_nothing(stubs: Any, route: Any) -> None:
    [stub] = await stubs(1)
    router = await route(replica_configs([stub]))
    answer = await router.chat(model="unknown")
    assert answer.status_code == 404
    assert not router.server.app.spending.totals
