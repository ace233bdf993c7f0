"""Two tenants at random on one server: neither finds what the other made, nor whether the other has asked the same.

What one is told beside the other is what it is told alone: the same requests go to a second server that the other never
asks. FUZZ_INPUTS says how many requests, FUZZ_SEED which.
"""

import os
import random
from typing import Any

import pytest
from tests.server.serving import Serving

from hotloop.core.config import EngineConfig, ServerConfig

NUM_INPUTS = min(int(os.environ.get("FUZZ_INPUTS", "25")), 500)
SEED = int(os.environ.get("FUZZ_SEED", "0"))
PIECES = [f"Sentence {i} that both of them may well begin with. " for i in range(4)]
WAYS = {"by key": {"cache_isolation": "key"}, "by salt": {}}
TELLING = ("cached_tokens", "cache_read_input_tokens", "recomputed_tokens", "new_tokens", "causes", "restored_tokens")
Fields = dict[str, Any]


class Tenant:
    """One who asks, with a key of its own; by salt, with one salt and the key that all have."""

    def __init__(self, name: str, way: str) -> None:
        self.name = name
        self.headers = {"authorization": f"Bearer {name}"}
        self.salt = {"cache_salt": f"salt of {name}"} if way == "by salt" else {}
        self.made: list[str] = []  # ids of responses
        self.explained: list[str] = []

    def ask(self, serving: Serving, rng: random.Random) -> Fields:
        """Something that the other may ask as well; whatever tells of the cache."""
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 4)))
        path, body = rng.choice(
            [
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 3}),
                ("/v1/completions", {"prompt": text, "max_tokens": 3}),
                ("/v1/messages", {"messages": [{"role": "user", "content": text}], "max_tokens": 3}),
                ("/v1/responses", {"input": text, "max_output_tokens": 3, "background": rng.random() < 0.3}),
            ]
        )
        session = {"session_id": f"session {rng.randrange(3)}"} if rng.random() < 0.5 else {}
        name = {"x-request-id": f"request-{rng.randrange(5)}"} if rng.random() < 0.5 else {}
        answer = serving.http.post(
            path, json=body | self.salt | session | {"temperature": 0}, headers=self.headers | name
        )
        assert answer.status_code == 200, answer.text
        said = answer.json()
        if path == "/v1/responses":
            self.made.append(said["id"])
        self.explained += [said["id"], answer.headers["x-request-id"]]
        return {"path": path, "text": text, **telling(said.get("usage") or {})}


def telling(usage: Fields) -> Fields:
    flat = usage | (usage.get("hotloop") or {})
    for details in ("prompt_tokens_details", "input_tokens_details"):
        flat |= flat.get(details) or {}
    return {name: flat[name] for name in TELLING if name in flat}


def pry(serving: Serving, thief: Tenant, owner: Tenant, rng: random.Random) -> None:
    """Ask for what is another's in every way there is: it is as if it were not there."""
    if not owner.made:
        return
    theirs, nobodys = rng.choice(owner.made), "resp_" + "0" * 48
    method, path, body = rng.choice(
        [
            ("GET", "/v1/responses/{}", None),
            ("GET", "/v1/responses/{}?stream=true", None),
            ("GET", "/v1/responses/{}/input_items", None),
            ("DELETE", "/v1/responses/{}", None),
            ("POST", "/v1/responses/{}/cancel", {}),
            ("POST", "/v1/responses", {"input": "and?", "previous_response_id": "{}"}),
            ("POST", "/v1/responses/input_tokens", {"input": "and?", "previous_response_id": "{}"}),
            ("GET", "/v1/cache/explain/{}", None),
        ]
    )
    answers = []
    for each in (theirs, nobodys):
        given = {name: value.format(each) for name, value in body.items()} if body else body
        answer = serving.http.request(method, path.format(each), json=given, headers=thief.headers)
        answers.append(
            (answer.status_code, answer.text.replace(each, "ID").replace(answer.headers["x-request-id"], ""))
        )
    assert answers[0] == answers[1], (method, path)
    assert answers[0][0] in (400, 404), answers[0]


def explanations(serving: Serving, tenant: Tenant) -> None:
    """By the names of requests, which the other gives as well, one finds one's own or nothing."""
    for name in {*tenant.explained[-6:]}:
        query = {"cache_salt": tenant.salt["cache_salt"]} if tenant.salt else {}
        answer = serving.http.get(f"/v1/cache/explain/{name}", params=query, headers=tenant.headers)
        assert answer.status_code in (200, 404)
        if name.startswith(("chatcmpl", "msg", "cmpl")):
            assert answer.status_code == 200, name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.long
def test_tenants_neither_find_nor_feel_each_other(way: str) -> None:
    rng = random.Random(f"tenants {SEED} {way}")
    config = ServerConfig(port=0, **WAYS[way])
    quiet = EngineConfig(drafts=False)
    print(f"seed {SEED}: {NUM_INPUTS} requests of two tenants {way}")
    with Serving(config, quiet, num_blocks=4096) as shared, Serving(config, quiet, num_blocks=4096) as alone:
        watched, other, double = Tenant("watched", way), Tenant("other", way), Tenant("watched", way)
        for _ in range(NUM_INPUTS):
            if rng.random() < 0.5:
                other.ask(shared, rng)
            seed = rng.random()
            here, there = (
                tenant.ask(serving, random.Random(seed)) for tenant, serving in ((watched, shared), (double, alone))
            )
            assert here == there, "one is told something else beside another"
            pry(shared, *rng.choice([(watched, other), (other, watched)]), rng)
            explanations(shared, watched)
        for tenant in (watched, other):
            for made in tenant.made[-20:]:
                assert shared.http.get(f"/v1/responses/{made}", headers=tenant.headers).status_code == 200
