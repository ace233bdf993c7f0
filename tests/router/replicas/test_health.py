"""What a replica says about itself is read with care: nothing that it sends ends its watch."""

import pytest
from tests.router.conftest import Page, running

from hotloop.core.config import RouterConfig
from hotloop.router.config import ReplicaConfig, RoutingConfig

DEEP = b"[" * 100_000 + b"]" * 100_000


def config_of(replica, **fields):
    return ReplicaConfig(url=replica.url, name="r", kind="vllm", **fields)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/metrics", b"vllm:num_requests_running 1e999\n"),
        ("/metrics", b"vllm:num_requests_running 1e300\n" * 20),
        ("/metrics", b"vllm:num_requests_running " + b"9" * 1_000_000 + b"\n"),
        ("/metrics", b"vllm:num_requests_running{\xff} 1\n"),
        ("/v1/models", b'{"data":[{"id":"\xff"}]}'),
        ("/v1/models", b'{"data":[{"id":"m"}],"more":' + DEEP + b"}"),
        ("/v1/models", b'{"data":[{"id":"m"}],"more":1e999}'),
        ("/v1/models", b'{"data":[{"id":' + DEEP + b"}]}"),
        ("/v1/models", b'{"data":[{"id":"m","created":1e300,"max_model_len":' + b"9" * 4000 + b',"meta":[{}]}]}'),
    ],
)
async def test_the_watch_survives_any_page(scripted, route, path, body):
    router = await route((config_of(scripted),))
    good = scripted.pages[path]
    scripted.pages["/health"] = Page(b"{}", 503)
    await router.until(lambda: router.replica_set.replicas["r"].state == "down")
    scripted.pages[path] = Page(body)
    scripted.pages["/health"] = Page(b"{}")
    await router.until(lambda: router.replica_set.replicas["r"].state == "up")
    assert (await router.client.get("/v1/models")).json()["data"][0]["id"] == "m"
    assert set(router.replica_set.replicas["r"].models) == {
        "m"
    }  # without a list it would be given requests for any model
    scripted.pages["/health"] = Page(b"{}", 503)
    await router.until(lambda: router.replica_set.replicas["r"].state == "down")
    scripted.pages |= {path: good, "/health": Page(b"{}")}
    await router.until(lambda: router.replica_set.replicas["r"].state == "up")
    assert (await router.client.get("/metrics")).status_code == 200


async def test_an_error_of_the_probe_itself_takes_the_replica_out_with_the_reason(scripted):
    """As a request that cannot be sent: it is neither answered nor does it fail."""
    broken = config_of(scripted, api_key="a\nb")
    async with running(RoutingConfig(router=RouterConfig(health_interval_s=0.05), replicas=(broken,))) as router:
        replica = router.replica_set.replicas["r"]
        await router.until(lambda: replica.state == "down")
        assert "line break" in replica.why
        replica.state = "new"
        await router.until(lambda: replica.state == "down")  # it is still watched


async def test_a_long_list_of_models_is_cut(scripted, route):
    cards = b",".join(b'{"id":"model-%d"}' % i for i in range(50_000))
    scripted.pages["/v1/models"] = Page(b'{"data":[' + cards + b"]}")
    router = await route((config_of(scripted),))
    assert len(router.replica_set.replicas["r"].models) <= 10_000
    answer = await router.client.post("/v1/chat/completions", json={"model": "nobody", "messages": []})
    assert answer.status_code == 404
    assert len(answer.content) < 10_000
