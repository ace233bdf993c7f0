"""`hotloop ray`: engines on Ray Serve, as many as there is work for."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hotloop.cli.command_line import CommandLine
from hotloop.cli.output import show
from hotloop.cli.settings import JsonOutput
from hotloop.core.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from hotloop.ray.cluster import Status

ray = CommandLine(name="ray", help="Deploy replicas and their router on Ray Serve (needs the extra `ray`).")

Address = Annotated[str, Parameter(help="Address of the Ray cluster; `auto` is the one this machine belongs to.")]


@ray.command
def up(path: Annotated[Path, Parameter(help="TOML file with what to deploy in [ray]; see docs/ray.md.")]) -> None:
    """Deploy replicas, or update the running deployment to match the file.

    Without an address in the file, Ray is started on this machine and stopped with this command.
    """
    from hotloop.ray.config import read_ray_config

    config = read_ray_config(path)
    cluster = _cluster()
    from hotloop.ray.app import build

    with cluster.connected(config.address):
        cluster.deploy(build(config), config)
        print(f"the deployment is at http://{config.host}:{config.port}", flush=True)
        if config.address is None:
            try:
                cluster.watch(lambda found: print(_words(found), flush=True))
            finally:
                cluster.withdraw()


@ray.command
def status(*, address: Address = "auto", as_json: JsonOutput = False) -> int:
    """Show the status. Exits with 1 if nothing is deployed or it does not respond."""
    cluster = _cluster()
    with cluster.connected(address):
        found: Status | None = cluster.read_status()
    show(asdict(found) if found else None, _words(found) if found else "nothing is deployed", as_json)
    return 0 if found and found.num_running else 1


@ray.command
def down(*, address: Address = "auto") -> None:
    """Remove the deployment from the cluster after finishing running requests."""
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
        raise ConfigError(f"`hotloop ray` needs Ray: pip install 'hotloop[ray]' ({error})") from None
    return cluster
