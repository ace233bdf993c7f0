"""Putting the application onto Ray, looking at it, taking it off. Ray runs the machines; nothing here does.

Without an address Ray is started here and ends with this process; with one it is somebody's, and stays as it is.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from hotloop.core.errors import HotloopError
from hotloop.http.listen import bind
from hotloop.ray.app import ENGINES, NAME
from hotloop.ray.config import RayConfig
from ray import serve

log = logging.getLogger(__name__)

_QUIET = {"logging_level": logging.ERROR, "log_to_driver": False}
_NUM_TRIES = 3
"""On a busy machine it takes longer than the half minute that Ray waits for itself."""
_OBJECT_STORE_BYTES = 256 << 20
"""Requests and pieces of answers pass through it, nothing stays."""
_KEEP_ALIVE_S = 75  # an agent comes back on its connection after its tool has run
_LOOPBACK = "127.0.0.1" if sys.platform == "darwin" else "127.0.0.2"
"""For 127.0.0.1 Ray looks for the address by which others reach this machine, unless it is a Mac."""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's own processes look for no address of this machine either
    "RAY_ROTATION_MAX_BYTES": str(16 << 20),  # an agent logs every second that it has no dashboard
}
_LOOK_S = 0.2
_FAREWELL_S = 3.0
"""Whoever removed the deployment is still connected: to them a cluster that ends too soon looks like a failure."""


class ClusterError(HotloopError):
    """Ray could not be reached, or could not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Status:
    """Its status. States and counts are Serve's words."""

    state: str
    message: str = ""
    replicas: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_running(self) -> int:
        return self.replicas.get("RUNNING", 0)


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    try:
        if address:
            ray.init(address, **_QUIET)
        else:
            _start_here()
    except Exception as error:  # Ray's own are of all kinds, and some of none
        where = f"at {address}" if address else "on this machine"
        raise ClusterError(f"no Ray {where}: {error}") from None
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _start_here() -> None:
    """A start that was too slow leaves processes behind, which end with this one."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for num_left in reversed(range(_NUM_TRIES)):
        try:
            with _without_requests() as options:
                ray.init("local", object_store_memory=_OBJECT_STORE_BYTES, **options)
        except Exception as error:
            if not num_left or "timed out during startup" not in str(error):
                raise
            log.warning("Ray timed out while starting; it is started again")
        else:
            return


@contextmanager
def _without_requests() -> Iterator[dict[str, Any]]:
    """What Ray is started with to ask nobody outside of this machine.

    Its dashboard, even one that is not included, asks the cloud's metadata service where it runs. Ray does without it
    where its port is taken, and logs an error. What a TPU is called comes from there, too.
    """
    with closing(bind("127.0.0.1", 0)) as taken:
        taken.listen()
        yield {
            "include_dashboard": False,
            "dashboard_port": taken.getsockname()[1],
            "_node_ip_address": _LOOPBACK,
            "resources": {"TPU": 0},
            "log_to_driver": False,
            "logging_level": logging.CRITICAL,
        }
    logging.getLogger("ray").setLevel(logging.ERROR)


def deploy(application: serve.Application, config: RayConfig) -> None:
    """Returns when it answers. What is deployed already becomes this, replica by replica."""
    if not config.address:
        bind(config.host, config.port).close()  # or Serve would try for minutes
    serve.start(
        http_options={"host": config.host, "port": config.port, "keep_alive_timeout_s": _KEEP_ALIVE_S},
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    try:
        serve.run(application, name=NAME)
    except RuntimeError as error:
        status = read_status()
        raise ClusterError(f"deployment failed: {status.message if status else error}") from None


def read_status() -> Status | None:
    found = serve.status().applications.get(NAME)
    if found is None:
        return None
    engines = found.deployments.get(ENGINES)
    said = (engines.message if engines else "") or found.message
    last_line = said.strip().rpartition("\n")[2]  # what comes before is how Ray got there
    return Status(found.status.value, last_line, dict(engines.replica_states) if engines else {})


def withdraw() -> None:
    """Returns when every replica has finished what it had begun, or has run out of time for it."""
    if read_status():
        serve.delete(NAME)


def watch(on_change: Callable[[Status], None]) -> None:
    """Until somebody takes it off the cluster."""
    last = None
    while status := read_status():
        if status != last:
            on_change(status)
            last = status
        time.sleep(_LOOK_S)
    time.sleep(_FAREWELL_S)
