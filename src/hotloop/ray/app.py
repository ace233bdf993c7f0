"""The deployment as a Serve application. `hotloop.ray.app:app` is what a Serve config names as its `import_path`.

client ── Serve's proxy ── Ingress ──placement── EngineReplica, as many as there is work for
"""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from hotloop.ray.config import RayConfig, parse_ray_config
from hotloop.ray.ingress import Ingress
from hotloop.ray.placing import PlacementRouter
from hotloop.ray.processes import OpenProcess, open_process
from hotloop.ray.replica import EngineReplica
from ray import serve

NAME = "hotloop"
ENGINES = "engine"

_INGRESS_ONGOING = 100_000  # it only passes bytes on: what may wait, and where, is the engines' to say
_MAX_STARTS = 3  # what does not come up by then will not: a model that is not there, say
_SHUTDOWN_CHECK_S = 0.5
_REPORTS = 5  # in the time over which requests are counted
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


def app(args: Mapping[str, Any]) -> serve.Application:
    """From the `args` of a Serve config, which are what `[ray]` may say."""
    return build(parse_ray_config(args))


def build(config: RayConfig, open_engine: OpenProcess | None = None) -> serve.Application:
    """`open_engine` is called in each replica to come, wherever that is; it must be importable there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of metrics_interval_s, which nothing has replaced yet
        engines = _engines(config)
    ingress = serve.deployment(
        Ingress,
        name="ingress",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_INGRESS_ONGOING,
        graceful_shutdown_timeout_s=config.drain_timeout_s,
        graceful_shutdown_wait_loop_s=_SHUTDOWN_CHECK_S,
        logging_config=_LOGGING,
    )
    opener = open_engine or partial(open_process, config)
    return ingress.bind(engines.bind(opener), api_key_env=config.api_key_env, max_body_bytes=config.max_body_bytes)


def _engines(config: RayConfig) -> serve.Deployment:
    return serve.deployment(
        EngineReplica,
        name=ENGINES,
        ray_actor_options={"num_cpus": config.cpus, "num_gpus": config.gpus},
        max_ongoing_requests=config.max_ongoing,
        max_queued_requests=config.max_waiting,
        autoscaling_config={
            "min_replicas": config.min_replicas,
            "max_replicas": config.max_replicas,
            "target_ongoing_requests": config.target_ongoing,
            "upscale_delay_s": config.upscale_delay_s,
            "downscale_delay_s": config.downscale_delay_s,
            "metrics_interval_s": config.look_back_s / _REPORTS,
            "look_back_period_s": config.look_back_s,
        },
        max_constructor_retry_count=_MAX_STARTS,
        graceful_shutdown_timeout_s=config.drain_timeout_s,
        graceful_shutdown_wait_loop_s=_SHUTDOWN_CHECK_S,
        request_router_config={
            "request_router_class": PlacementRouter,
            "request_router_kwargs": {"policy": config.policy, "capacity_tokens": config.capacity_tokens},
        },
        logging_config=_LOGGING,
    )
