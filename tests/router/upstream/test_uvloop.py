"""The same on the loop the router runs on: transports differ in when they write, pause and close."""

import inspect
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any

import pytest
import uvloop
from tests.router.upstream import test_failures, test_http1, test_http2
from tests.router.upstream.http2_replica import Trust

Scenario = Callable[..., Coroutine[Any, Any, None]]


def scenarios(*modules: ModuleType) -> dict[str, Scenario]:
    """Their tests, less those with parameters of their own."""
    return {
        f"{module.__name__}.{name}": test
        for module in modules
        for name, test in inspect.getmembers(module, inspect.iscoroutinefunction)
        if name.startswith("test_") and inspect.signature(test).parameters.keys() <= {"trust", "old_trust"}
    }


SCENARIOS = scenarios(test_http1, test_failures, test_http2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=[name.rpartition(".")[2] for name in SCENARIOS])
def test_on_uvloop(scenario: Scenario, trust: Trust, old_trust: Trust) -> None:
    wanted = inspect.signature(scenario).parameters
    given = {"trust": trust, "old_trust": old_trust}
    uvloop.run(scenario(**{name: given[name] for name in wanted}))
