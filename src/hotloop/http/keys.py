"""API keys: what each of them may do, and which tenant it stands for.

A tenant is known by a hash of its key, here and at every replica behind a router. A router with several keys names the
tenant of each request to its replicas in a header, signed with the key it uses there: a replica believes the header
only from a key that may speak for others, and a client who sends one of its own is refused.
"""

import hashlib
import hmac
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.files import read_toml
from hotloop.core.request import Priority

TENANT_HEADER = b"x-hotloop-tenant"
METRICS_PATH = "/metrics"
OPERATOR_PATHS = frozenset({METRICS_PATH, "/router/replicas"})
"""What tells of all tenants together: with several keys, not for each of them."""

Role = Literal["tenant", "admin", "metrics"]
ROLES: tuple[Role, ...] = get_args(Role)

_VOUCHED = re.compile(rb"(([0-9a-f]{64})(:admin)?)\.([0-9a-f]{64})")


class AccessDenied(HotloopError):
    """No key, a wrong one, or one that may not do this."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What a router lets a key have. None: as much as it likes."""

    priority: Priority = Priority.INTERACTIVE
    """The most urgent class its requests may be of."""
    models: tuple[str, ...] = ()
    """Patterns of the models it may name; all if there is none."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    money_per_minute: float | None = None
    requests_per_month: int | None = None
    tokens_per_month: int | None = None
    money_per_month: float | None = None

    def allows(self, model: str) -> bool:
        return not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)


UNLIMITED = KeyLimits()


@dataclass(frozen=True, slots=True)
class Key:
    secret: bytes = field(repr=False)
    role: Role = "tenant"
    name: str = ""
    limits: KeyLimits = UNLIMITED


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who sends a request."""

    id: str
    is_admin: bool = False
    is_apart: bool = False
    """Whether there are other tenants, so that sessions, runs and cached prefixes are its own."""
    name: str = field(default="", compare=False)
    limits: KeyLimits = field(default=UNLIMITED, compare=False, repr=False)

    @property
    def label(self) -> str:
        """What it is called where its use is counted."""
        return self.name or self.id[:8]

    def may_see(self, owner: str) -> bool:
        return self.is_admin or self.id == owner

    @property
    def sees_only(self) -> str | None:
        """The only tenant whose runs it may see; None if it may see all."""
        return self.id if self.is_apart and not self.is_admin else None

    def qualify(self, session: str) -> str:
        """A session's name that no other tenant can give; empty stays empty."""
        return f"{self.id[:16]}/{session}" if self.is_apart and session else session

    def vouch(self, secret: bytes) -> bytes:
        """The value of `TENANT_HEADER` for a replica that is asked with this key."""
        about = self.id.encode() + (b":admin" if self.is_admin else b"")
        return about + b"." + _sign(about, secret)


@dataclass(frozen=True)
class Keys:
    """All keys of a listener; without any it is open to everybody."""

    keys: tuple[Key, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys)

    @property
    def is_shared(self) -> bool:
        """Whether more than one key may send requests."""
        return sum(key.role != "metrics" for key in self.keys) > 1

    @property
    def own(self) -> str:
        """The key with which servers that share these ask each other: an admin's, or the only one; empty if none is."""
        admins = [key for key in self.keys if key.role == "admin"]
        only = [key for key in self.keys if key.role == "tenant" and not self.is_shared]
        return next((key.secret.decode() for key in (*admins, *only)), "")

    def admit(self, headers: Mapping[bytes, bytes], path: str) -> Tenant:
        """Who asks for a path. Raises AccessDenied."""
        given = _given(headers)
        key = self._find(given) if self.keys else None
        if self.keys and key is None:
            message = "the API key is missing or wrong: send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`"
            raise AccessDenied(401, "invalid_api_key", message)
        key = key or Key(next(filter(None, given), b""))
        if key.role == "metrics" and path != METRICS_PATH:
            raise AccessDenied(403, "forbidden", f"this API key may only read {METRICS_PATH}")
        if key.role == "tenant" and self.is_shared and path in OPERATOR_PATHS:
            raise AccessDenied(403, "forbidden", f"{path} shows all tenants, and needs an API key with another role")
        if (vouched := headers.get(TENANT_HEADER)) is not None:
            return self._read_vouched(vouched, key)
        is_admin = key.role == "admin"
        return Tenant(tenant_id(key.secret), is_admin, is_apart=self.is_shared, name=key.name, limits=key.limits)

    @cached_property
    def _by_id(self) -> dict[str, Key]:
        return {tenant_id(key.secret): key for key in self.keys}

    def _find(self, given: tuple[bytes, ...]) -> Key | None:
        """Keys are looked up by their hashes: the time that takes tells nothing about any of them."""
        return next((key for each in given if (key := self._by_id.get(tenant_id(each)))), None)

    def _read_vouched(self, header: bytes, key: Key) -> Tenant:
        """The tenant a router vouches for: it must have signed that with a key that is the only one, or an admin's."""
        found = _VOUCHED.fullmatch(header)
        may_vouch = key.role == "admin" or not self.is_shared
        if not found or not may_vouch or not hmac.compare_digest(found[4], _sign(found[1], key.secret)):
            message = f"{TENANT_HEADER.decode()} is for routers, signed with the key they use here"
            raise AccessDenied(403, "invalid_tenant", message)
        return Tenant(found[2].decode(), is_admin=bool(found[3]), is_apart=True)


@dataclass(slots=True)
class ApiKeys:
    """The keys that are valid now, shared by everything that checks them: a reload replaces them in one assignment."""

    current: Keys = Keys()


def tenant_id(secret: bytes) -> str:
    return hashlib.sha256(b"hotloop tenant\0" + secret).hexdigest()


def read_keys(api_key: str | None, file: str | None) -> Keys:
    """The key that was given and those in the file, one a line with its role behind it; none if neither is given.
    Raises ConfigError."""
    keys = {api_key: Key(api_key.encode())} if api_key else {}
    for key in _read_named(file) if file and file.endswith(".toml") else ():
        if keys.setdefault(key.secret.decode(), key) != key:
            raise ConfigError(f"{file}: {key.name!r} has the same API key as another")
    for line in _read_lines(file) if file and not file.endswith(".toml") else ():
        secret, _, role = (word.strip() for word in line.partition(" "))
        key = Key(secret.encode(), _parse_role(role or "tenant", str(file)))
        if keys.setdefault(secret, key) != key:
            raise ConfigError(f"{file}: one API key has two roles, {keys[secret].role} and {key.role}")
    if keys and all(key.role == "metrics" for key in keys.values()):
        raise ConfigError(f"{file}: all keys have the role metrics, so none could send a request")
    return Keys(tuple(keys.values()))


def _read_named(file: str) -> list[Key]:
    """The tables `[[keys]]` of a TOML file. Raises ConfigError."""
    tables = read_toml(Path(file).expanduser())
    given = tables.pop("keys", None)
    if tables or not isinstance(given, list) or not given:
        raise ConfigError(f"{file}: write [[keys]], once for each API key")
    keys = [_parse_named(table, f"{file}: keys[{i}]") for i, table in enumerate(given)]
    names = [key.name for key in keys]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{file}: two API keys are called {name!r}")
    return keys


def _parse_named(table: Any, place: str) -> Key:
    if not isinstance(table, dict):
        raise ConfigError(f"{place} must be a table")
    given = dict(table)
    name, secret, role = given.pop("name", ""), given.pop("key", ""), given.pop("role", "tenant")
    for word, value in (("name", name), ("key", secret)):
        if not isinstance(value, str) or not value or not value.isprintable():
            raise ConfigError(f"{place}.{word} must be a string without line breaks")
    return Key(secret.encode(), _parse_role(str(role), place), name, _parse_limits(given, place))


def _parse_limits(given: dict[str, Any], place: str) -> KeyLimits:
    known = {each.name for each in fields(KeyLimits)}
    for name in given.keys() - known:
        raise ConfigError(f"{place}: there is no key {name!r}; there are {', '.join(sorted(known))}")
    priority, models = given.pop("priority", "interactive"), given.pop("models", [])
    if not isinstance(priority, str) or priority.upper() not in Priority.__members__:
        raise ConfigError(f"{place}.priority: there is no class {priority!r:.40}")
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        raise ConfigError(f"{place}.models must be a list of strings")
    for name, value in given.items():
        is_number = type(value) is int or (type(value) is float and "money" in name)
        if not is_number or not 0 <= value < math.inf:
            raise ConfigError(f"{place}.{name} must be a number of at least 0, not {value!r:.40}")
    return KeyLimits(priority=Priority[priority.upper()], models=tuple(models), **given)


def _read_lines(file: str) -> list[str]:
    try:
        lines = [line.strip() for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot read the API keys in {file}: {error}") from None
    found = [line.replace("\t", " ") for line in lines if line and not line.startswith("#")]
    if not found:
        raise ConfigError(f"there is no API key in {file}")
    return found


def _parse_role(role: str, file: str) -> Role:
    for known in ROLES:
        if role == known:
            return known
    raise ConfigError(f"{file}: there is no role {role!r:.40} for an API key; there are {', '.join(ROLES)}")


def _given(headers: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """What may be a key: the scheme's name may be in any case."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return (token.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b""))


def _sign(about: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, b"hotloop tenant\0" + about, hashlib.sha256).hexdigest().encode()
