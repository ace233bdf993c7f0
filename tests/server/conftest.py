"""One server for all the tests that do not need their own."""

from collections.abc import Iterator

import openai
import pytest
from tests.server.serving import Serving


@pytest.fixture(scope="session")
def serving() -> Iterator[Serving]:
    with Serving() as serving:
        yield serving


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with serving.openai() as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def route_if_asked(pytestconfig: pytest.Config) -> None:
    Serving.is_routed = pytestconfig.getoption("--through-router")
    Serving.is_apart = pytestconfig.getoption("--apart")
    Serving.num_fronts = pytestconfig.getoption("--fronts")
