"""How the system treats a connection to a replica: small writes leave at once, and a machine that vanished is noticed.

Waiting minutes for an answer is ordinary here, so silence alone proves nothing: the system asks the other one whether
it is still there, and gives up on bytes that nobody confirms.
"""

import socket
from collections.abc import Sequence

_PROBE_AFTER_S = 15
_PROBE_EVERY_S = 5
_NUM_PROBES = 3
_UNCONFIRMED_MS = 60_000

_TCP = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": _PROBE_AFTER_S,
    "TCP_KEEPINTVL": _PROBE_EVERY_S,
    "TCP_KEEPCNT": _NUM_PROBES,
    "TCP_USER_TIMEOUT": _UNCONFIRMED_MS,
}

SOCKET_OPTIONS: Sequence[tuple[int, int, int]] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP.items() if hasattr(socket, name)),
)
"""Those of them this system has."""
