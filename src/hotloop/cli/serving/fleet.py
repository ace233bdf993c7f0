"""`hotloop fleet`: engines on Ray Serve, as many as there is work for."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hotloop.cli.command_line import CommandLine
from hotloop.cli.output import show
from hotloop.cli.settings import Json
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from hotloop.ray.cluster import Status

fleet = CommandLine(name="fleet", help="Deploy engines and their placement on Ray Serve (needs the extra `ray`).")

Address = Annotated[str, Parameter(help="The Ray cluster; auto is the one this machine belongs to.")]


@fleet.command
def up(path: Annotated[Path, Parameter(help="What to deploy: the file's [fleet], see docs/ray.md.")]) -> None:
    """Deploy a fleet, or make the one that is there as the file says.

    Without an address in the file, Ray is started on this machine, and ends with this command.
    """
    from hotloop.ray.config import read_fleet

    config = read_fleet(path)
    cluster = _cluster()
    from hotloop.ray.app import build

    with cluster.connected(config.address):
        cluster.deploy(build(config), config)
        print(f"the fleet is at http://{config.host}:{config.port}", flush=True)
        if config.address is None:
            try:
                cluster.watch(lambda found: print(_words(found), flush=True))
            finally:
                cluster.withdraw()


@fleet.command
def status(*, address: Address = "auto", as_json: Json = False) -> int:
    """Say how the fleet is; the exit code is 1 if there is none, or it does not answer."""
    cluster = _cluster()
    with cluster.connected(address):
        found: Status | None = cluster.read_status()
    show(asdict(found) if found else None, _words(found) if found else "there is no fleet", as_json)
    return 0 if found and found.num_running else 1


@fleet.command
def down(*, address: Address = "auto") -> None:
    """Take the fleet off the cluster; requests that run are answered first."""
    cluster = _cluster()
    with cluster.connected(address):
        cluster.withdraw()


def _words(found: "Status") -> str:
    counts = ", ".join(f"{count} {state.lower()}" for state, count in found.replicas.items() if count)
    line = f"{found.state.lower()}; replicas: {counts or 'none'}"
    return f"{line}; {found.message}" if found.message else line


def _cluster() -> "ModuleType":
    try:
        from hotloop.ray import cluster
    except ImportError as error:
        raise ConfigError(f"a fleet needs Ray: pip install 'hotloop[ray]' ({error})") from None
    return cluster
