"""The commands of `hotloop bench`, and where those went that measure hotloop itself."""

from typing import Annotated

from cyclopts import App, Parameter

from hotloop.cli.bench.replay import replay
from hotloop.cli.bench.tools import tools
from hotloop.core.errors import ConfigError

bench = App(name="bench", help="Measure a server as agents feel it.")
bench.command(replay)
bench.command(tools)

_MOVED = {"agent": "agent", "cache": "cache", "overhead": "overhead", "route": "route", "seeds": "claims"}
_MOVED |= {"soak": "soak", "tiers": "tiers"}


def _add_moved(old: str, new: str) -> None:
    """The old name says where to look; it goes with the next version."""

    def moved(*_: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
        raise ConfigError(
            f"`hotloop bench {old}` measures hotloop itself and left the package: run `python -m benchmarks.{new}` "
            "in a checkout of the repository"
        )

    bench.command(moved, name=old, show=False, help_flags=())


for _old, _new in _MOVED.items():
    _add_moved(_old, _new)
