"""Random schemas, random sampling, random drafts: every answer valid, and the same as without any shortcut. One that
was cut before it could be completed is the beginning of a valid one.

`HOTLOOP_STRESS=2000` asks for that many schemas.
"""

import json
import os
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from tests.engine.drafting.test_speculation import Oracle
from tests.engine.tiny import Listener, make_engine, make_request, until_idle

from hotloop.core.grammar import json_schema
from hotloop.core.request import FinishReason, Request, SamplingParams
from hotloop.engine.engine import Engine

NUM_SCHEMAS = int(os.environ.get("HOTLOOP_STRESS", "16"))
NUM_AT_ONCE = 8
WORDS = ("id", "name", "city", "unit", "a b", 'quo"te', "naïve", "x\\y", "", "celsius", "fahrenheit", "日本")


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    makers = [_string, _number, _integer, _enum, _constant, _boolean]
    if depth < 3:
        makers += [_object, _object, _array, _any_of]
    return _object(rng, depth) if depth == 0 else rng.choice(makers)(rng, depth)


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string"}
    if kind == 1:
        return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 20)}
    if kind == 2:
        return {"type": "string", "pattern": rng.choice([r"^[a-z]{2,5}-\d{3}$", r"^\+?[0-9]+$", r"^(ab|cd)*e$"])}
    return {"type": "string", "format": rng.choice(["date", "uuid", "unheard-of"])}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "number"} if rng.random() < 0.5 else {"type": "number", "minimum": -3.5, "maximum": 1000}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-100, 100)
    return {"type": "integer"} if rng.random() < 0.3 else {"type": "integer", "minimum": low, "maximum": low + 250}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample([*WORDS, 1, 2.5, None, True], rng.randrange(1, 6))}


def _constant(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice([*WORDS, 0, False])}


def _boolean(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null"])}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randrange(1, 5))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(3)
    return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": least, "maxItems": least + 3}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}


def random_sampling(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0, 0.5, 1, 2]),
        top_p=rng.choice([1, 0.8]),
        top_k=rng.choice([0, 20]),
        frequency_penalty=rng.choice([0, 0, 1.5]),
        seed=rng.randrange(1 << 30),
        max_tokens=600,
    )


def answers(engine: Engine, requests: Sequence[Request]) -> list[tuple[str, tuple[int, ...], FinishReason | None]]:
    listener = Listener()
    engine.submit(requests, listener)
    listener.wait(*(request.id for request in requests))
    return [
        (
            "".join(event.text for event in listener.events[request.id]),
            tuple(listener.token_ids(request.id)),
            listener.last(request.id).finish_reason,
        )
        for request in requests
    ]


@pytest.mark.parametrize("seed", range(-(-NUM_SCHEMAS // NUM_AT_ONCE)))
@pytest.mark.long
def test_random_schemas(seed: int) -> None:
    rng = random.Random(seed)
    schemas = [random_schema(rng) for _ in range(NUM_AT_ONCE)]
    prompts = [[rng.randrange(250) for _ in range(rng.randrange(1, 40))] for _ in schemas]
    samplings = [random_sampling(rng) for _ in schemas]

    def requests() -> list[Request]:
        return [
            make_request(prompts[i], f"r{i}", sampling=samplings[i], grammar=json_schema(schema))
            for i, schema in enumerate(schemas)
        ]

    with make_engine(forced_tokens=False, drafts=False, prefix_cache=False, num_blocks=2000) as plain:
        expected = answers(plain, requests())
    oracle = Oracle(
        {tuple(prompt): ids for prompt, (_, ids, _) in zip(prompts, expected, strict=True)}, rng.random(), seed
    )
    with make_engine(
        drafter=oracle, num_blocks=rng.choice([200, 400]), max_draft_tokens=rng.randrange(1, 12)
    ) as engine:
        found = answers(engine, requests())
        until_idle(engine)
        engine._core.scheduler.check()
    assert found == expected
    for schema, (text, token_ids, reason) in zip(schemas, found, strict=True):
        if reason is FinishReason.STOP:
            jsonschema.validate(json.loads(text), schema)
        matcher = engine.grammars.matcher(json_schema(schema))
        assert all(map(matcher.advance, token_ids))
