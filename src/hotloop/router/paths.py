"""Which path is answered how: placed with a replica (`kinds.PATHS`), by the replica that made what it names, by the
router itself, by all that keep sessions, or by any hotloop. All that `hotloop serve` answers is here, with the methods
it answers, which a test checks; nothing else is passed on.
"""

import re
from typing import Literal, NamedTuple

from hotloop.http.keys import METRICS_PATH
from hotloop.router.errors import RouteError
from hotloop.router.kinds import PATHS

By = Literal["placed", "owner", "router", "hotloop", "sessions"]

EXPLAIN = "/v1/cache/explain/"
OWNED = {"/v1/responses/": "response_not_found", EXPLAIN: "explanation_not_found"}
"""Paths that name an answer, which only the replica that made it knows; and the code if no replica does."""
CLOSING = re.compile(r"/v1/sessions/(?P<id>.+)/close|/close_session")
_GET = frozenset({"GET", "HEAD"})
_POST = frozenset({"POST"})


class Path(NamedTuple):
    pattern: re.Pattern[str]
    by: By
    methods: frozenset[str] = _GET


_OTHERS = (
    Path(CLOSING, "sessions", _POST),
    Path(re.compile(r"/v1/responses/[^/]+"), "owner", _GET | {"DELETE"}),
    Path(re.compile(r"/v1/responses/[^/]+/input_items"), "owner"),
    Path(re.compile(r"/v1/responses/[^/]+/cancel"), "owner", _POST),
    Path(re.compile(rf"{EXPLAIN}.*"), "owner"),
    Path(re.compile(rf"/v1/models(/.*)?|{METRICS_PATH}|/health|/ready|/version|/router/replicas"), "router"),
    Path(re.compile(r"/|/api/hello"), "router"),  # coding agents ask whether somebody answers
    Path(re.compile(r"/openapi\.json"), "hotloop"),
)


def find_path(method: str, path: str) -> By:
    """Who answers. Raises RouteError where nobody does."""
    if path in PATHS and method == "POST":
        return "placed"
    found = [each for each in _OTHERS if each.pattern.fullmatch(path)]
    for each in found:
        if method in each.methods:
            return each.by
    if path in PATHS or found:
        allowed = _POST if path in PATHS else found[0].methods
        raise RouteError(405, "method_not_allowed", f"method {method:.40} not allowed for {path:.200}", allowed=allowed)
    raise RouteError(404, "unknown_url", f"unknown URL: {path:.200}")


def is_path(path: str) -> bool:
    return path in PATHS or any(each.pattern.fullmatch(path) for each in _OTHERS)
