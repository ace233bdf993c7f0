"""One server for all the tests that do not need their own, and another behind a router for those of the clients."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import openai
import pytest
from tests.server.serving import Serving

ROUTED_TOO = (
    "test_openai_client",
    "test_responses_client",
    "test_anthropic_client",
    "test_agents",
    "test_anthropic_agents",
)
ROUTED_OFTEN = ("test_openai_client", "test_anthropic_client")
"""Those of them that are so in `make test`."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The clients' own tests run twice: with a router between, they notice nothing of it."""
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in ROUTED_TOO and not metafunc.config.getoption("--through-router"):
        routed = pytest.param(True, id="routed", marks=[pytest.mark.long] * (name not in ROUTED_OFTEN))
        ways = [pytest.param(False, id="direct"), routed]
        metafunc.parametrize("has_router", ways, scope="module", indirect=True)


@pytest.fixture(scope="module", autouse=True)
def has_router(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether servers that are started have a router before them."""
    Serving.is_routed = getattr(request, "param", False) or request.config.getoption("--through-router")
    Serving.is_apart = request.config.getoption("--apart")
    Serving.num_fronts = request.config.getoption("--fronts")
    yield Serving.is_routed
    Serving.is_routed = False


@pytest.fixture(scope="session")
def servings() -> Iterator[Callable[[bool], Serving]]:
    with ExitStack() as stack:
        yield cache(lambda has_router: stack.enter_context(Serving()))


@pytest.fixture(scope="module")
def serving(servings: Callable[[bool], Serving], has_router: bool) -> Serving:
    return servings(has_router)


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with serving.openai() as client:
        yield client
