"""What `[ray]` of the configuration file says: which engine, how many of it, where. Knows nothing of Ray.

    [ray]
    max_replicas = 4
    [ray.hotloop]                   what hotloop.toml may say of the model, the engine and the server
    model = "smollm2-135m"

The same keys are the `args` of a Serve config. An unknown key or a wrong type is an error that names its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hotloop.core.config import FEATURES, EngineConfig, Feature, ModelConfig, PolicyName, ServerConfig, parse_bytes
from hotloop.core.errors import ConfigError
from hotloop.core.files import read_toml
from hotloop.core.structs import compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class HotloopConfig:
    """hotloop's own engine, inside a replica."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


@compiled
class VllmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's server, as a child of a replica."""

    model: str = ""
    """What to serve: a name or a folder, as `vllm serve` takes it."""
    command: tuple[str, ...] = ("vllm", "serve")
    """How it is started; the model, `--host` and `--port` are appended."""
    args: tuple[str, ...] = ()
    """What else it is told, such as --max-model-len and 8192."""
    start_timeout_s: float = 600.0
    """How long it may take until it is well."""


PositiveInt = Annotated[int, Meta(ge=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]


@compiled
class RayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas on Ray Serve."""

    engine: Literal["hotloop", "vllm"] = "hotloop"
    """Engine that runs in a replica; vLLM must be installed there."""
    address: str | None = None
    """Address of the Ray cluster, such as auto or 10.0.0.1:6379; if not given, Ray is started here while the deployment
    is up."""
    host: str = "127.0.0.1"
    """Address to listen on; loopback by default. A Serve that is already running keeps its own."""
    port: int = 8790
    """Port to listen on."""
    api_key_env: str = ""
    """Environment variable with the API key that every request must carry, except health checks; read where the ingress
    runs."""
    policy: PolicyName = "prefix"
    """How a replica is chosen: by cached prefix and load, by session, by load alone, round robin, or at random."""
    min_replicas: PositiveInt = 1
    """Minimum number of replicas."""
    max_replicas: PositiveInt = 1
    """Maximum number of replicas."""
    target_ongoing: PositiveFloat = 16.0
    """Target number of requests per replica, for autoscaling."""
    max_ongoing: PositiveInt = 64
    """Maximum requests at one replica; others wait at the ingress."""
    max_waiting: PositiveInt = 1024
    """Maximum requests waiting at the ingress; further requests get 429."""
    upscale_delay_s: NotNegative = 10.0
    """Seconds of too few replicas before more are started."""
    downscale_delay_s: NotNegative = 300.0
    """Seconds of too many replicas before some are stopped, and their caches lost."""
    look_back_s: PositiveFloat = 10.0
    """Seconds over which requests are averaged for autoscaling."""
    drain_timeout_s: PositiveFloat = 600.0
    """Seconds for which a replica that is being stopped may finish its requests."""
    cpus: NotNegative = 1.0
    """CPUs reserved by Ray for a replica."""
    gpus: NotNegative = 0.0
    """GPUs reserved by Ray for a replica."""
    capacity_tokens: PositiveInt = 1_000_000
    """Estimate of the tokens that a replica can cache; hotloop's engine reports its own."""
    max_body: str = "16MiB"
    """Maximum size of a request body."""
    hotloop: HotloopConfig = HotloopConfig()
    vllm: VllmConfig = VllmConfig()

    def __post_init__(self) -> None:
        if self.max_replicas < self.min_replicas:
            raise ConfigError(f"max_replicas must be at least min_replicas, {self.min_replicas}")
        if self.engine == "vllm" and not self.vllm.model:
            raise ConfigError('vLLM needs a model: [ray.vllm] model = "..."')
        parse_bytes(self.max_body)

    @property
    def max_body_bytes(self) -> int:
        return parse_bytes(self.max_body)


_PARTS = {"model": ModelConfig, "engine": EngineConfig, "server": ServerConfig}
_NOT_OF_A_REPLICA = {
    *("host", "port", "api_key", "api_key_file", "allowed_hosts", "drain_timeout_s", "max_body", "body_memory"),
    "write_timeout_s",
}
"""Settings of a server that a deployment has for all of its replicas."""


def read_ray_config(path: Path) -> RayConfig:
    """Raises ConfigError."""
    tables = read_toml(path)
    if not isinstance(tables.get("ray"), dict):
        raise ConfigError(f"{path} has no table [ray], which says what to deploy")
    try:
        return parse_ray_config(tables["ray"])
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_ray_config(table: Mapping[str, Any]) -> RayConfig:
    """Raises ConfigError."""
    given = table.get("hotloop", {})
    if not isinstance(given, Mapping):
        raise ConfigError("[ray.hotloop] must be a table")
    for name in given.keys() - (_names(*_PARTS.values()) - _NOT_OF_A_REPLICA - {*FEATURES} | {"disable"}):
        raise ConfigError(f"[ray.hotloop]: there is no setting {name!r}")
    try:
        off: dict[str, Any] = dict.fromkeys(msgspec.convert(given.get("disable", ()), tuple[Feature, ...]), False)
        return msgspec.convert({**table, "hotloop": _nest({**given, **off})}, RayConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"[ray]: {error}".replace("`", "").replace("$.", "")) from None


def _nest(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {part: {name: value for name, value in flat.items() if name in _names(cls)} for part, cls in _PARTS.items()}


def _names(*classes: type) -> set[str]:
    return {each.name for cls in classes for each in fields(cls)}
