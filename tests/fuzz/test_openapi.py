"""What is described is sent at random, and what is nearly so: never a 500, always a status and a shape that are
described. `make test-fuzz` installs what this needs.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.serving import Serving

if "FUZZ_EXAMPLES" not in os.environ:
    pytest.skip("takes minutes: make test-fuzz", allow_module_level=True)
schemathesis = pytest.importorskip("schemathesis", reason="endpoints are fuzzed with schemathesis: make test-fuzz")

from hypothesis import HealthCheck, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from hotloop.server.app import ROUTES  # noqa: E402
from hotloop.server.openapi import describe  # noqa: E402

NUM_EXAMPLES = int(os.environ["FUZZ_EXAMPLES"])  # of each endpoint
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DESCRIPTION = describe(ROUTES)
schema = schemathesis.openapi.from_dict(DESCRIPTION)


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving() as serving:
        yield serving


def shorten(body: dict[str, Any], path: str) -> None:
    """What is asked for is written to its end, and a run of these tests should have one."""
    limit = "max_output_tokens" if path.startswith("/v1/responses") else "max_tokens"
    if isinstance(body.get(limit), int | None) and path not in ("/tokenize", "/detokenize"):
        body[limit] = min(body.get(limit) or 4, 4)
        body.pop("max_completion_tokens", None)
    if isinstance(body.get("n"), int):
        body["n"] = min(body["n"], 2)
    if isinstance(body.get("min_tokens"), int):
        body["min_tokens"] = min(body["min_tokens"], 4)


@schema.parametrize()
@settings(max_examples=NUM_EXAMPLES, suppress_health_check=[*HealthCheck], derandomize=True, database=None)
def test_whatever_is_sent_the_answer_is_as_described(case, serving: Serving) -> None:
    if isinstance(case.body, dict):
        case.body.pop("model", None)  # any other than its own is refused before the rest is read
        shorten(case.body, case.operation.path)
    case.call_and_validate(base_url=serving.url, checks=CHECKS, timeout=30)


def test_the_server_is_still_well(serving: Serving) -> None:
    assert serving.http.get("/health").status_code == 200
    assert serving.chat().status_code == 200
