"""What the configuration file says beyond settings: one `[[replicas]]` each. Unknown keys and wrong types are errors.

url = "http://10.0.0.7:8000"      all that is needed
name = "a"                        how it is called here; its host and port if not given
kind = "vllm"                     recognised if not given
models = { large = "org/name" }   names clients use, and its own for them; what it lists itself if not given
api_key_env = "SOME_KEY"          the variable that holds its key; read once, never shown, sent to nobody else
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from hotloop.core.config import RouterConfig, check_endpoint
from hotloop.core.errors import ConfigError
from hotloop.core.files import read_toml
from hotloop.http.url import check_url
from hotloop.router.kinds import KINDS, Api
from hotloop.router.placement.events import load_zmq
from hotloop.router.placement.pools import POOLS, Pool
from hotloop.router.tiers.config import parse_tiers
from hotloop.router.upstream.wire import TARGET
from hotloop.trace.money import PriceTable

TABLES = ("replicas", "tiers", "routes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    url: str
    name: str
    kind: str = "auto"
    models: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)
    apis: frozenset[Api] = frozenset()
    """What it speaks, where that is not what its kind does."""
    health_path: str | None = None
    weight: float = 1.0
    capacity_tokens: int = 1_000_000
    """How many tokens it keeps cached, roughly."""
    api_version: str = ""
    """What is named as `api-version`, where the kind asks for one."""
    pool: Pool | Literal[""] = ""
    """Which prompts it is for: those that are mostly known, or all others; both if not given."""
    max_connections: int = 128
    kv_events: str = ""
    """Where it publishes what its KV cache holds, such as tcp://10.0.0.7:5557."""
    kv_replay: str = ""

    def __post_init__(self) -> None:
        """All of it is checked here, so that a reload fails before anything is replaced."""
        if not self.name.isprintable():  # it is in headers, metrics and the log
            raise ConfigError(f"{self.name!r} cannot be a replica's name: it holds a control character")
        if self.kind != "auto" and self.kind not in KINDS:
            raise ConfigError(f"{self.name}: there is no kind {self.kind!r}; there are {', '.join(KINDS)}")
        if not 0 < self.weight < math.inf or self.capacity_tokens < 1 or self.max_connections < 1:
            raise ConfigError(f"{self.name}: weight, capacity_tokens and max_connections must be finite and above zero")
        if self.health_path is not None and not TARGET.fullmatch(self.health_path):
            raise ConfigError(f"{self.name}: health_path must be like /health, not {self.health_path!r}")
        for key in ("kv_events", "kv_replay"):
            if endpoint := getattr(self, key):
                check_endpoint(f"{key} of {self.name}", endpoint)


_WORDS: Mapping[str, tuple[str, ...]] = {"apis": get_args(Api), "pool": POOLS}
REPLICA_KEYS = {each.name for each in fields(ReplicaConfig)} - {"api_key"} | {"api_key_env"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    router: RouterConfig
    replicas: tuple[ReplicaConfig, ...]
    tables: Mapping[str, Any] = field(default_factory=dict)
    """The other tables of the file, for whoever knows them."""
    prices: PriceTable = field(default_factory=PriceTable)

    def __post_init__(self) -> None:
        names = [each.name for each in self.replicas]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two replicas are called {name!r}; give each a name")
        if not names:
            raise ConfigError("there is no replica: give --replica URL, or [[replicas]] in a file")


def read_routing(router: RouterConfig, path: Path | None, environ: Mapping[str, str]) -> RoutingConfig:
    """Replicas from flags and, if there is one, the file; checked as a whole. Raises ConfigError."""
    tables = _read_tables(path) if path else {}
    given = tuple(_by_url(url, router) for url in router.replica)
    listed = tuple(_parse_replica(table, router, environ, path) for table in tables.pop("replicas", []))
    if any(each.kv_events for each in listed):
        load_zmq()
    parse_tiers(tables)
    prices = PriceTable.parse(read_toml(path).get("prices", {}), str(path)) if path else PriceTable()
    return RoutingConfig(router=router, replicas=given + listed, tables=tables, prices=prices)


def _read_tables(path: Path) -> dict[str, Any]:
    data = read_toml(path)
    tables = {name: data[name] for name in TABLES if name in data}
    for name, value in tables.items():
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise ConfigError(f"{path}: write [[{name}]], once for each")
    return tables


def _by_url(url: str, router: RouterConfig) -> ReplicaConfig:
    address, name = check_url(url).removesuffix("/v1"), urlsplit(url).netloc
    return ReplicaConfig(url=address, name=name, max_connections=router.max_connections)


def _parse_replica(
    table: dict[str, Any], router: RouterConfig, environ: Mapping[str, str], path: Path | None
) -> ReplicaConfig:
    for name in table.keys() - REPLICA_KEYS:
        raise ConfigError(f"{path}: [[replicas]]: there is no key {name!r}")
    if not isinstance(url := table.get("url"), str):
        raise ConfigError(f"{path}: [[replicas]]: url must be a string")
    for key, known in _WORDS.items():
        given_words = table.get(key, [])
        for word in given_words if isinstance(given_words, list) else [given_words]:
            if word not in (*known, ""):
                raise ConfigError(f"{path}: {url}: {key} knows no {word!r:.40}; there are {', '.join(known)}")
    by_url = _by_url(url, router)
    named = {"max_connections": by_url.max_connections, **table, "url": by_url.url}
    try:
        given = msgspec.convert({**named, "name": table.get("name") or by_url.name}, ReplicaConfig)
        key_name = msgspec.convert(table.get("api_key_env", ""), str)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{path}: [[replicas]]: {error}") from None
    if key_name and not environ.get(key_name):
        raise ConfigError(f"{path}: {given.url} needs a key, but {key_name} is not set")
    if not environ.get(key_name, "").isprintable():  # it is in a header
        raise ConfigError(f"{path}: the key in {key_name} holds a control character, such as a line break")
    return replace(given, api_key=environ.get(key_name))
