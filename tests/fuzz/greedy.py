"""`python -m tests.fuzz.greedy FOLDER` is a server with a tiny model that records what was said, redacted: a process,
so that the memory it takes is its own. It writes its address when it is ready, and runs until its input ends.
"""

import sys
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


if __name__ == "__main__":
    serve(sys.argv[1])
