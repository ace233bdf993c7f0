"""`python -m tests.fuzz.greedy serve FOLDER` is a server with a tiny model that records what was said, redacted;
`python -m tests.fuzz.greedy probe HOST PORT` asks it how it is, all the time. Each is a process of its own, so that the
memory it takes and the time it waits are its own. Each writes a line when it is ready, and runs until its input ends.
"""

import http.client
import json
import sys
import threading
import time
from pathlib import Path

from tests.server.serving import Serving

from hotloop.cli.serving.http import shorten_pauses
from hotloop.core.config import ServerConfig
from hotloop.trace.content import Content
from hotloop.trace.store import Bounds, StoreTracer

STORE_BYTES = 64 << 20


def serve(folder: str) -> None:
    content = Content.parse(True, [r"[\w.]+@[\w.]+"])
    tracer = StoreTracer(Path(folder) / "trace.db", bounds=Bounds(max_bytes=STORE_BYTES), content=content)
    with Serving(ServerConfig(port=0), tracer=tracer) as serving:
        shorten_pauses()  # as `hotloop serve` does
        print(serving.url, flush=True)
        sys.stdin.read()
    tracer.close()


def probe(host: str, port: str) -> None:
    """Writes how long each answer took, in milliseconds, as a list."""
    taken_ms, is_over = [], threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set())).start()
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    print("ready", flush=True)
    while not is_over.wait(0.03):
        asked_at = time.monotonic()
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        taken_ms.append(round((time.monotonic() - asked_at) * 1000, 2))
    print(json.dumps(taken_ms))


if __name__ == "__main__":
    {"serve": serve, "probe": probe}[sys.argv[1]](*sys.argv[2:])
