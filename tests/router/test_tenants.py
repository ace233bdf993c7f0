"""Two tenants behind one router: what is one's is not the other's, whatever the replicas are."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.loopback import http_at
from tests.router.conftest import Mirror, Router
from tests.server.serving import Routing, Serving, check_error

from hotloop.core.config import ServerConfig
from hotloop.http.keys import Tenant, tenant_id
from hotloop.router.config import ReplicaConfig

RULES = "Answer every question about the parcels of our customers shortly and politely. " * 6
ANNA, BOB, ROOT, SCRAPE = ({"authorization": f"Bearer {name}"} for name in ("anna", "bob", "root", "scrape"))
Start = Callable[..., Awaitable[Router]]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("anna\nbob\nroot admin\nscrape metrics\n")
    return str(file)


@pytest.fixture(scope="module", params=["with a key", "without"])
def routed(request: pytest.FixtureRequest, key_file: str) -> Iterator[httpx.Client]:
    """A router with several keys over two servers that have one key, or none."""
    key = "of-the-replicas" if request.param == "with a key" else None
    with ExitStack() as stack:
        urls = [stack.enter_context(Serving(ServerConfig(port=0, api_key=key))).url for _ in range(2)]
        url = stack.enter_context(Routing(*urls, replica_key=key, api_key_file=key_file))
        yield stack.enter_context(http_at(url))


def respond(http: httpx.Client, text: str, headers: dict[str, str], **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": text, "max_output_tokens": 2, "instructions": RULES, **fields}
    answer = http.post("/v1/responses", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


def test_no_explanation_quotes_another_tenant(routed: httpx.Client) -> None:
    """Both ask nearly the same, often enough that both have asked every replica: one that compared the prompts of both
    would quote the other's words and name its answers."""
    rules = {"anna": f"Anna's password is swordfish. {RULES}", "bob": f"Anna's password is unknown. {RULES}"}
    secrets = [respond(routed, f"Where is parcel {i}?", ANNA, instructions=rules["anna"])["id"] for i in range(6)]
    for i in range(6):
        guess = respond(routed, f"Where is parcel {i}?", BOB, instructions=rules["bob"])
        told = routed.get(f"/v1/cache/explain/{guess['id']}", headers=BOB)
        assert told.status_code == 200
        assert "swordfish" not in told.text
        assert told.json()["compared_with"] not in secrets


def test_a_response_is_there_for_its_tenant_alone(routed: httpx.Client) -> None:
    own = respond(routed, "Remember the number 7.", ANNA)["id"]
    nobodys = "resp_" + "0" * 48
    for method, path in (
        ("GET", "/v1/responses/{}"),
        ("GET", "/v1/responses/{}/input_items"),
        ("GET", "/v1/cache/explain/{}"),
        ("POST", "/v1/responses/{}/cancel"),
        ("DELETE", "/v1/responses/{}"),
    ):
        theirs, unknown = (
            routed.request(method, path.format(each), headers=BOB).json()["error"] for each in (own, nobodys)
        )
        assert theirs["message"].replace(own, nobodys) == unknown["message"]
        assert theirs["code"] == unknown["code"]
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        body = {"model": "tiny", "input": "Which number?", "previous_response_id": own}
        answer = routed.post(path, json=body, headers=BOB)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "previous_response_not_found")
    continued = respond(routed, "Which number?", ANNA, previous_response_id=own)["id"]
    for headers in (ANNA, ROOT):
        assert routed.get(f"/v1/responses/{own}", headers=headers).status_code == 200
        assert "the number 7" in routed.get(f"/v1/responses/{continued}/input_items", headers=headers).text
        assert routed.get(f"/v1/cache/explain/{own}", headers=headers).status_code == 200
    assert routed.delete(f"/v1/responses/{own}", headers=ANNA).status_code == 200


def test_prefixes_are_not_shared(routed: httpx.Client) -> None:
    text = "Nobody else must notice that this was asked before. " * 20

    def ask(headers: dict[str, str]) -> tuple[int, str]:
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1, "user": "u"}
        answer = routed.post("/v1/chat/completions", json=body, headers=headers)
        route = dict(each.split("=") for each in answer.headers["x-hotloop-route"].split("; "))
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"], route["matched"].partition("/")[0]

    assert ask(ANNA) == (0, "0")
    cached, matched = ask(ANNA)
    assert cached > 500
    assert int(matched) > 100
    assert ask(BOB) == (0, "0")


def test_roles(routed: httpx.Client) -> None:
    for path in ("/metrics", "/router/replicas"):
        check_error(routed.get(path, headers=ANNA), 403, "forbidden")
        assert routed.get(path, headers=ROOT).status_code == 200
    assert "\nhotloop_router_" in routed.get("/metrics", headers=SCRAPE).text
    for path in ("/v1/models", "/router/replicas"):
        check_error(routed.get(path, headers=SCRAPE), 403, "forbidden")


def test_a_client_cannot_speak_for_another(routed: httpx.Client) -> None:
    own = respond(routed, "Mine.", ANNA)["id"]
    for secret in (b"", b"bob", b"of-the-replicas", b"guess"):
        header = {"x-hotloop-tenant": Tenant(tenant_id(b"anna")).vouch(secret).decode()}
        answer = routed.get(f"/v1/responses/{own}", headers=BOB | header)
        assert answer.status_code in (403, 404)
        assert "Mine" not in answer.text


def test_a_replica_that_takes_the_router_for_one_of_many_refuses(key_file: str) -> None:
    """Its key is a tenant's there, and no tenant may speak for others: better an error than all of them as one."""
    with (
        Serving(ServerConfig(port=0, api_key_file=key_file)) as serving,
        Routing(serving.url, replica_key="bob", api_key_file=key_file) as url,
        http_at(url) as http,
    ):
        answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "a"}, headers=ANNA)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "replica_failed")


def chat(text: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"model": "own-name", "messages": [{"role": "user", "content": text}], **fields}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_other_engines_get_a_salt(mirror: Mirror, route: Start, key_file: str, kind: str) -> None:
    router = await route((ReplicaConfig(url=mirror.url, name="m", kind=kind),), api_key_file=key_file)
    for headers, fields in ((ANNA, {}), (ANNA, {}), (BOB, {}), (ANNA, {"cache_salt": "s"}), (BOB, {"cache_salt": "s"})):
        await router.client.post("/v1/chat/completions", json=chat(**fields), headers=headers)
    salts = [_body(each)["cache_salt"] for each in mirror.seen]
    assert salts[0] == salts[1]
    assert len({*salts}) == 4
    assert "s" not in salts
    assert all("x-hotloop-tenant" not in each["headers"] for each in mirror.seen)
    await router.client.post("/v1/messages", json=chat(max_tokens=1), headers=ANNA)
    assert mirror.seen[-1]["path"] == "/v1/chat/completions", "its messages have no salt"
    assert _body(mirror.seen[-1])["cache_salt"] == salts[0]


async def test_without_several_keys_bodies_stay_as_they_are(mirror: Mirror, route: Start, key_file: str) -> None:
    replicas = (ReplicaConfig(url=mirror.url, name="m", kind="vllm"),)
    for settings in ({"api_key": "anna"}, {"api_key_file": key_file, "cache_isolation": "none"}):
        router = await route(replicas, **settings)
        await router.client.post("/v1/messages", json=chat(max_tokens=1), headers=ANNA)
        assert mirror.seen[-1]["path"] == "/v1/messages"
        assert "cache_salt" not in _body(mirror.seen[-1])


async def test_the_router_guards_what_other_engines_made(mirror: Mirror, route: Start, key_file: str) -> None:
    """They do not know whose a response is."""
    mirror.reply = 200, {"id": "resp_1", "object": "response", "output": []}
    router = await route((ReplicaConfig(url=mirror.url, name="m", kind="vllm"),), api_key_file=key_file)

    async def status(method: str, path: str, headers: dict[str, str], **body: Any) -> int:
        more = {"json": body} if body else {}
        return (await router.client.request(method, path, headers=headers, **more)).status_code

    made: dict[str, Any] = {"model": "own-name", "input": "a"}
    assert await status("POST", "/v1/responses", ANNA, **made) == 200
    num_asked = len(mirror.paths)
    for name in ("resp_1", "resp_2"):
        for method in ("GET", "DELETE"):
            assert await status(method, f"/v1/responses/{name}", BOB) == 404
        assert await status("POST", f"/v1/responses/{name}/cancel", BOB) == 404
        assert await status("POST", "/v1/responses", BOB, previous_response_id=name, **made) == 404
    assert await status("GET", "/v1/cache/explain/resp_1", ANNA) == 404
    assert [path for path in mirror.paths[num_asked:] if "responses" in path or "explain" in path] == []
    for headers in (ANNA, ROOT):
        assert await status("GET", "/v1/responses/resp_1", headers) == 200
    assert await status("POST", "/v1/responses", ANNA, previous_response_id="resp_1", **made) == 200
    assert await status("POST", "/v1/responses", BOB, **made) == 200, "of the same id, as a client may choose it"
    assert await status("GET", "/v1/responses/resp_1", BOB) == 404


def _body(seen: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = httpx.Response(200, content=seen["raw"]).json()
    return body
