"""`python -m tests.fuzz.probe HOST PORT` asks a server how it is, all the time: a process, so that the time it waits is
its own. It writes a line when it is ready, and runs until its input ends.
"""

import http.client
import json
import sys
import threading
import time


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
    probe(*sys.argv[1:])
