"""Routes instead of models, through a real router: rules, hints, a cascade, and what was saved."""

from dataclasses import replace
from typing import Any

import pytest
from tests.router.conftest import MESSAGES, Page, Router, ScriptedReplica, running, serving

from hotloop.core.config import RouterConfig
from hotloop.http.keys import Keys
from hotloop.router.config import ReplicaConfig, RoutingConfig
from hotloop.trace import names
from hotloop.trace.tracer import ListTracer
from hotloop.wire.sse import DONE, write_data

TIERS = [
    {"name": "small", "model": "fast", "input_price": 1.0, "output_price": 2.0},
    {"name": "large", "model": "slow", "input_price": 10.0, "output_price": 20.0},
]
ANYBODY = Keys().admit({}, "/v1/chat/completions")
RULES = [{"tasks": ["classification"], "tier": "small"}]


def replica_set(mirror: Any, route: dict[str, Any]) -> RoutingConfig:
    models = {"fast": "own-fast", "slow": "own-slow"}
    replica = ReplicaConfig(url=mirror.url, name="m", kind="openai_compatible", models=models)
    settings = RouterConfig(health_interval_s=0.05, drain_timeout_s=5.0, max_retries=0)
    return RoutingConfig(router=settings, replicas=(replica,), tables={"tiers": TIERS, "routes": [route]})


def completion(content: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c-1", "object": "chat.completion", "choices": [choice], "usage": usage}


async def ask(router: Router, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    await router.until(lambda: router.replica_set.replicas["m"].state == "up")
    body = {"model": "auto", "messages": MESSAGES, **fields}
    return await router.client.post("/v1/chat/completions", json=body, headers=headers or {})


@pytest.mark.parametrize(
    ("task", "tier", "model"), [("classification", "small", "own-fast"), ("code", "large", "own-slow")]
)
async def test_a_hint_decides_and_the_answer_says_so(mirror, task, tier, model):
    mirror.reply = (200, completion("yes"))
    async with running(replica_set(mirror, {"rules": RULES, "default": "large"})) as router:
        answer = await ask(router, {"x-hotloop-task": task})
        page = (await router.client.get("/metrics")).text
    assert answer.headers["x-hotloop-tier"].startswith(f"tier={tier}; ")
    assert f'"model":"{model}"'.encode() in mirror.seen[-1]["raw"].replace(b" ", b"")
    assert f'hotloop_router_tier_answers_total{{tier="{tier}"}} 1.0' in page
    saved = (1000 * 9 + 100 * 18) / 1e6 if tier == "small" else 0.0
    assert f"hotloop_router_saved_money {saved}" in page


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cascade_goes_up_when_an_answer_will_not_do(mirror, stream):
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["a"]}}}
    route = {"default": "small", "cascade": {"on": ["invalid_output"]}}
    mirror.reply = (200, completion("no JSON"))
    async with running(replica_set(mirror, route)) as router:
        answer = await ask(router, response_format=schema, stream=stream)
        assert answer.headers["x-hotloop-tier"].startswith("tier=large; ")
        mirror.reply = (200, completion('{"a": 1}'))
        answer = await ask(router, response_format=schema, stream=stream)
        assert answer.headers["x-hotloop-tier"].startswith("tier=small; ")
        if stream:
            assert answer.content.endswith(b"data: [DONE]\n\n")
        else:
            assert answer.json()["choices"][0]["message"]["content"] == '{"a": 1}'
    models = [b"own-slow" if b"own-slow" in seen["raw"] else b"own-fast" for seen in mirror.seen]
    assert models == [b"own-fast", b"own-slow", b"own-fast"]


async def test_a_key_pays_for_what_a_cascade_threw_away(mirror):
    route = {"default": "small", "cascade": {"on": ["invalid_output"]}}
    mirror.reply = (200, completion("no JSON"))
    async with running(replica_set(mirror, route)) as router:
        await ask(router, response_format={"type": "json_object"})
        spending, tenant = router.server.app.spending, ANYBODY.label
        month = spending.quotas._accounts[tenant].month
    money = [(1000 * price + 100 * 2 * price) / 1e6 for price in (1.0, 10.0)]
    assert spending.totals == {
        (tenant, "fast"): [0, 1000, 0, 100, money[0]],
        (tenant, "slow"): [1, 1000, 0, 100, money[1]],
    }
    assert (month.requests, month.tokens, month.money) == (1, 2200, pytest.approx(sum(money)))
    assert [(line.model, line.requests) for line in spending.book.lines] == [("fast", 0), ("slow", 1)]


async def test_several_choices_are_not_judged(mirror):
    mirror.reply = (200, completion(""))
    async with running(replica_set(mirror, {"default": "small", "cascade": {"on": ["invalid_output"]}})) as router:
        answer = await ask(router, n=2)
    assert answer.headers["x-hotloop-tier"].startswith("tier=small; ")
    assert len(mirror.seen) == 1


async def test_other_models_are_left_alone(mirror):
    mirror.reply = (200, completion("yes"))
    async with running(replica_set(mirror, {"default": "large"})) as router:
        answer = await ask(router, model="fast")
    assert "x-hotloop-tier" not in answer.headers


async def test_tiers_are_read_again_with_the_file(mirror):
    mirror.reply = (200, completion("yes"))
    config = replica_set(mirror, {"default": "large"})
    async with running(config) as router:
        tables = {"tiers": TIERS, "routes": [{"default": "small"}]}
        router.server.app.reload(replace(config, tables=tables))
        answer = await ask(router)
    assert answer.headers["x-hotloop-tier"].startswith("tier=small; ")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_trace_knows_which_answer_a_cascade_took(mirror, stream):
    tracer = ListTracer()
    mirror.reply = (200, completion('{"a": 1}'))
    async with running(
        replica_set(mirror, {"default": "small", "cascade": {"on": ["invalid_output"]}}), tracer
    ) as router:
        await ask(router, stream=stream, stream_options={"include_usage": True} if stream else None)
    [route] = tracer.spans
    told = route.attributes
    assert (told[names.ANSWER_ID], told[names.NUM_PROMPT], told[names.NUM_OUTPUT]) == ("c-1", 1000, 100)


def words(num: int, logprob: float) -> list[bytes]:
    """A stream that a tier writes."""
    told = {"content": [{"token": "w", "logprob": logprob, "top_logprobs": []}]}
    pieces = [{"index": 0, "delta": {"content": "w "}, "logprobs": told, "finish_reason": None} for _ in range(num)]
    pieces.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"})
    chunks = [{"id": "c-1", "object": "chat.completion.chunk", "choices": [each]} for each in pieces]
    usage = {"prompt_tokens": 1000, "completion_tokens": num, "total_tokens": 1000 + num}
    return [*map(write_data, chunks), write_data({"id": "c-1", "choices": [], "usage": usage}), DONE]


@pytest.mark.parametrize(("logprob", "tier"), [(-0.1, "small"), (-3.0, "large")])
async def test_a_smaller_tier_is_streamed_once_its_beginning_will_do(logprob: float, tier: str) -> None:
    small, large, path = ScriptedReplica(), ScriptedReplica(), "/v1/chat/completions"
    small.pages[path] = Page(b"".join(words(12, logprob)), content_type=b"text/event-stream", size=700)
    large.pages[path] = Page(b"".join(words(3, -0.1)), content_type=b"text/event-stream")
    cascade = {"default": "small", "cascade": {"hold_tokens": 8}}
    async with serving(small), serving(large):
        replicas = tuple(
            ReplicaConfig(url=app.url, name=name, kind="vllm", models={name: name})
            for name, app in (("fast", small), ("slow", large))
        )
        settings = RouterConfig(health_interval_s=0.05, drain_timeout_s=5.0, max_retries=0)
        tables = {"tiers": TIERS, "routes": [cascade]}
        async with running(RoutingConfig(router=settings, replicas=replicas, tables=tables)) as router:
            await router.until(lambda: all(each.state == "up" for each in router.replica_set.replicas.values()))
            body = {"model": "auto", "messages": MESSAGES, "stream": True}
            answer = await router.client.post(path, json=body)
            page = (await router.client.get("/metrics")).text
    assert answer.headers["x-hotloop-tier"].startswith(f"tier={tier}; ")
    [(_, sent)] = small.seen
    assert (sent["stream"], sent["logprobs"]) == (True, True)
    assert answer.text.count('"w "') == (12 if tier == "small" else 3), "each word once"
    assert answer.content.endswith(DONE)
    assert "usage" not in answer.text, "the client did not ask for it"
    assert ('"logprob":' in answer.text) is (tier == "large"), "nobody asked for them at the smaller one but the judge"
    assert f'hotloop_router_tier_answers_total{{tier="{tier}"}} 1.0' in page
    discarded = page.partition('hotloop_router_tier_discarded_total{tier="small"} ')[2][:3]
    assert discarded == ("0.0" if tier == "small" else "1.0")
