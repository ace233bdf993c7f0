"""Who sends a request, and with whom its cached prefixes are shared.

A scope is a name for those who share: prefixes, and what is remembered of prompts, are found within one scope only. It
is a hash, so that the engine holds no key and no salt.
"""

import hashlib
from dataclasses import dataclass

from hotloop.core.config import CacheIsolation
from hotloop.core.request import Priority
from hotloop.http.keys import Tenant


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, as part of what, and how urgent it is."""

    tenant: Tenant
    scope: str
    """With whom what was computed is shared."""
    session_id: str = ""
    request_id: str = ""
    priority: Priority = Priority.INTERACTIVE
    parent_id: str = ""
    """The session that this one works for."""
    is_final: bool = False
    """Whether its session ends with this request."""

    @property
    def owner(self) -> str:
        """Whose the answer is."""
        return self.tenant.id


NOBODY = Caller(Tenant(""), "")


def name_scope(tenant: Tenant, cache_salt: str | None, isolation: CacheIsolation) -> str:
    """Empty where everybody shares."""
    is_by_key = isolation == "key" or (isolation == "auto" and tenant.is_apart)
    return _digest(tenant.id if is_by_key else "", cache_salt or "") if cache_salt or is_by_key else ""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
