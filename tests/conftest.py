"""What several rooms share: the real default model, and a home that is thrown away."""

import gc
import os
import signal
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from tests.properties import FEW, USUAL, mark_sampled

from hotloop.backends.cpu import build
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.home import home
from hotloop.models.model import pull


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file; downloaded if it is not here yet."""
    return pull(DEFAULT_MODEL).path


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$HOTLOOP_HOME pointing at an empty folder. Only what is compiled is kept where it always is."""
    usual_home = home()
    monkeypatch.setattr(build, "home", lambda: usual_home)
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def home_for_processes(empty_home: Path) -> Path:
    """The same for processes that are started, which would compile all of it anew."""
    kept = empty_home / "cache" / "native"
    kept.parent.mkdir(parents=True)
    kept.symlink_to(build.home() / "cache" / "native")
    return empty_home


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected
    begin_apart(config)
    os.environ["HOTLOOP_TRACE"] = "off"  # what tests run is not one of the user's runs
    unchecked = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    # Busy machines are slow. Examples are new ones in every run: many runs see more than one long run.
    steady = hypothesis.settings(deadline=None, suppress_health_check=unchecked, max_examples=USUAL)
    hypothesis.settings.register_profile("steady", steady)
    hypothesis.settings.register_profile("few", steady, max_examples=FEW)
    unshrunk = [Phase.explicit, Phase.generate]
    hypothesis.settings.register_profile("mutants", steady, max_examples=FEW, phases=unshrunk, database=None)
    hypothesis.settings.load_profile("steady")
    # A shell that starts us in the background has SIGINT ignored. What tests start would inherit that, and go on for
    # ever where a test interrupts it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def begin_apart(config: pytest.Config) -> None:
    """Each worker collects all tests, and begins elsewhere: what one has compiled then, the others find."""
    worker = getattr(config, "workerinput", None)
    folders = [Path(each) for each in config.args]
    if worker is None or folders != [Path(__file__).parent]:
        return
    tests = sorted({folders[0] / path.relative_to(folders[0]).parts[0] for path in folders[0].rglob("test_*.py")})
    begin = len(tests) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args[:] = map(str, tests[begin:] + tests[:begin])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one order, wherever a worker began. The longest come first: none is left alone with one in the end."""
    mark_sampled(items)
    items.sort(key=lambda item: (item.get_closest_marker("long") is None, str(item.path)))


def pytest_collection_finish() -> None:
    """What was collected stays: garbage is not looked for in it again and again."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--through-router", action="store_true", help="Talk to servers through a router.")
    parser.addoption("--apart", action="store_true", help="Have a link between servers and their engines.")
    parser.addoption("--fronts", type=int, default=1, help="How many servers each engine has.")
    parser.addoption("--random-calls", type=int, default=400, help="How many calls a random model makes.")
    parser.addoption("--kills", type=int, default=12, help="At how many moments processes of agents are killed.")


@pytest.fixture(scope="session")
def num_random_calls(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--random-calls"))


@pytest.fixture(scope="session")
def num_kills(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--kills"))
