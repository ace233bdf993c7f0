"""How the system treats a connection to a replica: small writes leave at once, and a machine that vanished is noticed.

Minutes of silence are ordinary during a prefill, so keepalive probes and unacknowledged bytes decide, not silence.
"""

import socket
from collections.abc import Sequence

_TCP = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}

SOCKET_OPTIONS: Sequence[tuple[int, int, int]] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP.items() if hasattr(socket, name)),
)
"""Those that this system has."""
