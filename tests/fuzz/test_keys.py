"""Two tenants with keys of their own, at a server and behind a router, at every endpoint and at the dashboard's API.

Nothing of one is in anything the other is told, and what one is told beside the other is what it is told alone: the
same requests go to a second deployment that the other never asks. FUZZ_INPUTS says how many pairs of requests,
FUZZ_SEED which.
"""

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.routing import Route
from tests.fuzz.test_tenants import PIECES, SEED, TELLING, Fields
from tests.loopback import http_at
from tests.server.serving import Routing, Serving, until

from hotloop.cli.serving.pages import live_of_engine, live_of_router, page_of
from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.http.keys import OPERATOR_PATHS, ApiKeys, read_keys
from hotloop.http.requests import HELLO_PATHS
from hotloop.router.kinds import PATHS, QUESTIONS
from hotloop.router.paths import OWNED
from hotloop.server.app import ROUTES
from hotloop.trace import names
from hotloop.trace.content import Content
from hotloop.trace.runs import TraceStore
from hotloop.trace.span import Span
from hotloop.trace.store import StoreTracer
from hotloop.ui.app import create_ui

NUM_PAIRS = int(os.environ.get("FUZZ_INPUTS", "25"))
Asked = tuple[str, str, Fields | None]
VOLATILE = re.compile(
    r'[0-9a-f]{16,}|"(?:created|created_at|completed_at|evicted_at)": ?[\d.]+|"waits_ms": ?\{[^}]*\}|req_\w+'
)
RUNNING = re.compile(r'"status": ?"(queued|in_progress)"')
SHOWN = ("session", "model", *(f"num_{what}" for what in ("prompt", "cached", "recomputed", "spans")))
"""Of a run. How long it is in tokens of output is not the same each time: what compacts a conversation is sampled."""
KEYS = "watched\nother\nroot admin\nscrape metrics\n"


class Recorded(StoreTracer):
    """Knows which requests it was told of: a span is recorded a moment after its client has the answer."""

    def __init__(self, path: Path, *layers: str) -> None:
        self._layers = layers
        self._told: set[tuple[str, str]] = set()
        super().__init__(path, content=Content(is_kept=True))

    def record(self, span: Span) -> None:
        super().record(span)
        self._told.add((span.name, span.attributes.get(names.REQUEST_ID, "")))

    def catch_up(self, sent: Sequence[tuple[str, int]]) -> None:
        """A server tells of what it has answered, a router of what it has refused, too."""
        wanted = {(layer, each) for layer in self._layers for each, status in sent}
        wanted -= {(names.REQUEST, each) for each, status in sent if status != 200}
        until(lambda: wanted <= self._told)
        assert self.flush()


class Client:
    """A tenant at one house, and what it has made there."""

    def __init__(self, name: str, http: httpx.Client, recorded: Recorded) -> None:
        self.name = name
        self._http = http
        self._recorded = recorded
        self.responses: list[str] = []
        self.answers: list[str] = []
        self.sent: list[tuple[str, int]] = []
        self.runs: list[str] = []
        self.files: list[str] = []
        self.ids: set[str] = set()
        self.begun: set[str] = set()
        self.turn = 0

    def send(self, asked: Asked) -> httpx.Response:
        method, path, body = asked
        if path.startswith("/ui/api"):
            self._recorded.catch_up(self.sent[-10:])
        headers = {"authorization": f"Bearer {self.name}"}
        if body and "user" in body:  # a trace that both of them name
            headers["traceparent"] = f"00-{self.turn // 10 + 1:032x}-{'cd' * 8}-01"
        given: Fields = {"json": body}
        if (method, path) == ("POST", "/v1/files"):
            given = {"files": {"file": ("batch.jsonl", (body or {})["text"])}, "data": {"purpose": "batch"}}
        answer = self._http.request(method, path, headers=headers, **given)
        is_recorded = method == "POST" and path in PATHS and path not in QUESTIONS
        self.sent += [(answer.headers["x-request-id"], answer.status_code)] if is_recorded else []
        assert answer.status_code < 500, (asked, answer.text)
        return answer

    def do(self, asked: Asked) -> httpx.Response:
        """Send it, and take down what was made."""
        answer = self.send(asked)
        method, path, body = asked
        self.check_route(body or {}, answer)
        if answer.status_code == 200 and method == "POST" and path in PATHS and path not in QUESTIONS:
            said = answer.text if is_stream(answer) else str(answer.json()["id"])
            self.answers.append(re.findall(r"(?:resp|msg|cmpl|chatcmpl)[_-][0-9a-f]+", said)[0])
            if path == "/v1/responses":
                self.responses.append(self.answers[-1])
                until(lambda: not RUNNING.search(self.send(("GET", f"{path}/{self.answers[-1]}", None)).text))
        elif (method, path, answer.status_code) == ("POST", "/v1/files", 200):
            self.files.append(answer.json()["id"])
        elif path.startswith("/ui/api/runs?") and answer.status_code == 200:
            self.runs = [run["id"] for run in answer.json()["runs"]]
        self.ids.update(re.findall(r"[0-9a-f]{16,}", " ".join(self.answers[-1:] + self.runs)))
        return answer

    def check_route(self, body: Fields, answer: httpx.Response) -> None:
        """A router says how much of a prompt it believes cached: nothing, if nobody but another began like that. (How
        much it believes of one's own depends on the room there is for all.)"""
        begin = str(body.get("prompt") or body.get("input") or body.get("messages"))[:450]
        is_matched = not answer.headers.get("x-hotloop-route", "matched=0/").count("matched=0/")
        assert not is_matched or begin in self.begun, body
        self.begun.add(begin)

    def latest(self, made: Sequence[str], rng: random.Random) -> str:
        return rng.choice(made[-10:]) if made else "0" * 32


def is_stream(answer: httpx.Response) -> bool:
    return answer.headers.get("content-type", "").startswith("text/event-stream")


def prompt(client: Client, rng: random.Random) -> str:
    """What the other may ask as well, or what nobody else may ever hear of."""
    text = "".join(4 * piece for piece in rng.choices(PIECES, k=rng.randint(1, 4)))
    return text if rng.random() < 0.7 else f"The secret of {client.name} is {rng.randrange(5)}. {text}"


def generate(path: str, client: Client, rng: random.Random) -> Asked:
    text, limit = prompt(client, rng), 3
    body: Fields = {
        "/v1/completions": {"prompt": text, "max_tokens": limit},
        "/v1/responses": {"input": text, "max_output_tokens": limit, "background": rng.random() < 0.2},
        "/v1/responses/input_tokens": {"input": text},
    }.get(path, {"messages": [{"role": "user", "content": text}], "max_tokens": limit})
    body |= {"model": "tiny", "temperature": 0} if path not in QUESTIONS else {"model": "tiny"}
    if path.startswith("/v1/responses") and client.responses and rng.random() < 0.2:
        body["previous_response_id"] = client.latest(client.responses[:50], rng)
    name = rng.choice(["session_id", "user"]) if path != "/v1/messages" else "session_id"
    if rng.random() < 0.5 and not path.endswith("/compact"):  # a summary is sampled: what closing frees would be, too
        body[name] = f"session {rng.randrange(3)}"
    if path not in QUESTIONS and not body.get("background") and rng.random() < 0.2:
        body["stream"] = True
    return "POST", path, body


def of_response(method: str, path: str) -> Callable[[Client, random.Random], Asked]:
    return lambda client, rng: (
        method,
        path.format(id=client.latest(client.responses, rng)),
        {} if method == "POST" else None,
    )


def of_file(method: str, path: str) -> Callable[[Client, random.Random], Asked]:
    return lambda client, rng: (method, path.format(id=client.latest(client.files, rng)), None)


def make_batch(client: Client, rng: random.Random) -> Asked:
    """Of a file in which no line is a request, so that nothing runs."""
    body = {"input_file_id": client.latest(client.files, rng), "endpoint": "/v1/chat/completions"}
    return "POST", "/v1/batches", {**body, "completion_window": "24h"}


def of_run(path: str) -> Callable[[Client, random.Random], Asked]:
    return lambda client, rng: ("GET", path.format(id=client.latest(client.runs, rng)), None)


def plain(path: str, method: str = "GET", body: Fields | None = None) -> Callable[[Client, random.Random], Asked]:
    return lambda client, rng: (method, path, body)


CASES: dict[str, Callable[[Client, random.Random], Asked]] = {
    **{f"POST {path}": partial(generate, path) for path in PATHS},
    "GET /v1/responses/{id}": of_response("GET", "/v1/responses/{id}"),
    "DELETE /v1/responses/{id}": of_response("DELETE", "/v1/responses/{id}"),
    "POST /v1/responses/{id}/cancel": of_response("POST", "/v1/responses/{id}/cancel"),
    "GET /v1/responses/{id}/input_items": of_response("GET", "/v1/responses/{id}/input_items"),
    "GET /v1/cache/explain/{id:path}": lambda client, rng: plain(
        f"/v1/cache/explain/{client.latest(client.answers, rng)}"
    )(client, rng),
    **{
        f"GET {path}": plain(path) for path in ("/v1/models", "/health", "/ready", "/version", "/metrics", *HELLO_PATHS)
    },
    "GET /openapi.json": plain("/openapi.json"),
    "GET /v1/models/{model:path}": plain("/v1/models/tiny"),
    "POST /tokenize": lambda client, rng: ("POST", "/tokenize", {"prompt": prompt(client, rng)}),
    "POST /detokenize": plain("/detokenize", "POST", {"tokens": [1, 2]}),
    "GET /v1/files": plain("/v1/files"),
    "POST /v1/files": lambda client, rng: ("POST", "/v1/files", {"text": prompt(client, rng)}),
    "GET /v1/files/{id}": of_file("GET", "/v1/files/{id}"),
    "GET /v1/files/{id}/content": of_file("GET", "/v1/files/{id}/content"),
    "DELETE /v1/files/{id}": of_file("DELETE", "/v1/files/{id}"),
    "GET /v1/batches": plain("/v1/batches"),
    "POST /v1/batches": make_batch,
    "GET /v1/batches/{id}": plain(f"/v1/batches/batch_{'0' * 32}"),
    "POST /v1/batches/{id}/cancel": plain(f"/v1/batches/batch_{'0' * 32}/cancel", "POST", {}),
    "POST /v1/sessions/{id:path}/close": lambda client, rng: (
        "POST",
        f"/v1/sessions/session {rng.randrange(3)}/close",
        {},
    ),
    "POST /close_session": lambda client, rng: (
        "POST",
        "/close_session",
        {"session_id": f"session {rng.randrange(3)}"},
    ),
    "GET /router/replicas": plain("/router/replicas"),
    "GET /ui": plain("/ui"),
    "GET /ui/": plain("/ui/"),
    "GET /ui/static": plain("/ui/static/app.js"),
    "GET /ui/api/overview": plain("/ui/api/overview"),
    "GET /ui/api/live": plain("/ui/api/live"),
    "GET /ui/api/summary": plain("/ui/api/summary"),
    "GET /ui/api/runs": lambda client, rng: ("GET", f"/ui/api/runs?limit={rng.randint(1, 5)}", None),
    "GET /ui/api/runs/{id}": of_run("/ui/api/runs/{id}"),
    "GET /ui/api/runs/{id}/lint": of_run("/ui/api/runs/{id}/lint"),
}
GENERATING = [name for name in CASES if name.removeprefix("POST ") in PATHS]


def routes_of(routes: Iterable[Any]) -> set[str]:
    """Every endpoint of an application, as `CASES` names them."""
    found = set()
    for route in routes:
        if isinstance(route, Route):
            found |= {f"{method} {route.path}" for method in (route.methods or ()) - {"HEAD"}}
        elif route.routes:
            found |= routes_of(route.routes)
        else:
            found.add(f"GET {route.path}")
    return found


def test_every_endpoint_has_a_case() -> None:
    page = create_ui(cast("Any", None))
    router = {f"POST {path}" for path in PATHS} | {"GET /router/replicas"}
    assert {*CASES} == routes_of(ROUTES) | routes_of(page.routes) | router
    assert all(any(name.split()[1].startswith(path) for name in CASES) for path in OWNED)
    assert {f"GET {path}" for path in OPERATOR_PATHS} <= {*CASES}


def tell(asked: Asked, answer: httpx.Response) -> object:
    """What an answer says, less what is another each time."""
    if is_stream(answer):
        return {name: re.findall(rf'"{name}": ?(\d+)', answer.text)[-1:] for name in TELLING}
    if asked[1].startswith("/ui/api/summary") and answer.status_code == 200:  # how long it took is another each time
        return sorted((name, repr(value)) for name, value in walk(answer.json()["groups"]) if name in SHOWN)
    if asked[1].startswith("/ui/api/runs") and answer.status_code == 200:
        return sorted((name, repr(value)) for name, value in walk(answer.json()) if name in SHOWN)
    if asked[1] in ("/v1/files", "/v1/batches") and asked[0] == "GET":  # of one second, in any order
        return sorted(re.findall(r"\{[^{}]*\}", VOLATILE.sub("", answer.text)))
    if asked[1].endswith("/compact") and answer.status_code == 200:  # the summary is sampled, and sealed
        made = answer.json()
        usage = made["usage"]["input_tokens"], made["usage"]["input_tokens_details"]
        return usage, [item.get("content") for item in made["output"]]
    return answer.status_code, VOLATILE.sub("", answer.text)


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield str(name), each if not isinstance(each, dict | list) else None
        yield from walk(each)


def check_nothing_of(other: Client, asked: Asked, answer: httpx.Response) -> None:
    said = answer.text + repr(answer.headers.multi_items())
    assert f"secret of {other.name}" not in said, asked
    assert other.ids.isdisjoint(re.findall(r"[0-9a-f]{16,}", said)), asked


def steal(thief: Client, owner: Client, double: Client, rng: random.Random) -> None:
    """Ask for what is another's in every way there is: it is as if it were not there. What a tenant tried is on record,
    so its double tries the same."""
    by_response = ["POST /v1/responses", "POST /v1/responses/input_tokens"]
    name = rng.choice(
        [*by_response, *(name for name in CASES if "{id" in name and "sessions" not in name), "GET /ui/api/runs"]
    )
    made = owner.runs if "/ui/" in name else owner.answers if "explain" in name else owner.responses
    made = owner.files if "/files" in name or "/batches" in name else made
    theirs, nobodys = owner.latest(made, rng), "0" * 32 if "/ui/" in name else "resp_" + "0" * 48
    method, _, path = name.partition(" ")
    told = []
    for each in (theirs, nobodys):
        if name in by_response:
            asked: Asked = method, path, {"model": "tiny", "input": "and?", "previous_response_id": each}
        elif name == "GET /ui/api/runs":
            asked = method, f"{path}?before={each}", None
        else:
            asked = method, path.replace("{id:path}", each).replace("{id}", each), {} if method == "POST" else None
        answer = thief.send(asked)
        if thief.name == double.name:
            double.send((method, asked[1].replace(each, nobodys), asked[2]))
        assert f"secret of {owner.name}" not in answer.text
        told.append((answer.status_code, VOLATILE.sub("", answer.text.replace(each, ""))))
    assert told[0] == told[1], name
    assert told[0][0] in (400, 404) or told[0][1] == '{"runs":[],"before":null}', told


@contextmanager
def house(way: str, folder: Path) -> Iterator[tuple[httpx.Client, Recorded]]:
    """An API with several keys and its dashboard."""
    folder.mkdir()
    (folder / "keys").write_text(KEYS)
    layers = (names.REQUEST,) if way == "at a server" else (names.ROUTE, names.REQUEST)
    tracer = Recorded(folder / "trace.db", *layers)
    keys = read_keys(None, str(folder / "keys"))
    memory: Fields = {"explain_memory_tokens": 50_000_000, "prompt_memory_tokens": 50_000_000}
    with ExitStack() as stack:
        stack.callback(tracer.close)
        store = stack.enter_context(TraceStore(folder / "trace.db"))
        size: Fields = {"engine_config": EngineConfig(drafts=False), "num_blocks": 1 << 18, "tracer": tracer}
        if way == "at a server":
            config = ServerConfig(
                port=0, api_key_file=str(folder / "keys"), batch_dir=str(folder / "batches"), **memory
            )
            page = lambda engine: page_of(store, "", lambda: live_of_engine(engine), keys=ApiKeys(keys))  # noqa: E731
            url = stack.enter_context(Serving(config, page=page, **size)).url
        else:
            config = ServerConfig(port=0, api_key="of the replica", **memory)
            replica = stack.enter_context(Serving(config, **size)).url
            show = lambda app: page_of(store, "", lambda: live_of_router(app), keys=ApiKeys(keys))  # noqa: E731
            options: Fields = {"api_key_file": str(folder / "keys"), "tracer": tracer, "page": show}
            url = stack.enter_context(Routing(replica, replica_key="of the replica", **options))
        yield stack.enter_context(http_at(url)), tracer


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["at a server", "behind a router"])
def test_nothing_of_one_tenant_reaches_another(way: str, tmp_path: Path) -> None:
    rng, counts = random.Random(f"keys {SEED} {way}"), Counter[str]()
    print(f"seed {SEED}: {NUM_PAIRS} pairs of requests of two tenants {way}")
    with house(way, tmp_path / "shared") as shared, house(way, tmp_path / "alone") as alone:
        watched, other, double = Client("watched", *shared), Client("other", *shared), Client("watched", *alone)
        for turn in range(NUM_PAIRS):
            watched.turn = other.turn = double.turn = turn
            name = rng.choice(GENERATING if rng.random() < 0.6 else [*CASES])
            theirs = CASES[name](other, rng)
            check_nothing_of(watched, theirs, other.do(theirs))
            name, seed = rng.choice(GENERATING if rng.random() < 0.6 else [*CASES]), rng.random()
            told = []
            for client in (watched, double):
                asked = CASES[name](client, random.Random(seed))
                answer = client.do(asked)
                told.append(tell(asked, answer))
                check_nothing_of(other, asked, answer)
            assert told[0] == told[1], f"{name}: one is told something else beside another"
            counts[f"{name} {answer.status_code}"] += 1
            if rng.random() < 0.5:
                steal(*rng.choice([(watched, other), (other, watched)]), double, rng)
    print(dict(sorted(counts.items())))
