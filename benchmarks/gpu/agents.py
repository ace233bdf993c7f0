"""Recorded agents at a server with the shapes of Llama-3.1-8B, and at a peer on the same card after it.

    python -m benchmarks.gpu.agents --data TRACES.jsonl.gz [--sessions 8 16 32] [--requests 8] [--limit S]
        [--peer 'vllm serve {folder} --load-format dummy --port {port} --enable-prompt-tokens-details']

Traces are those of `benchmarks.recorded_agents`; every server gets the same ones. Each number of sessions is a run of
its own, with prompts that the server has not seen. Last, short prompts beside long ones (`short_beside_long`).
"""

import asyncio
import shlex
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks import recorded_agents, short_beside_long
from benchmarks.gpu.models import SHAPES, dummy_folder
from benchmarks.vocabularies import write_filled_tokenizer
from hotloop.bench.serving import ChildServer, exit_on_sigterm

SHAPE = "llama-8b"
_MAX_START_S = 600.0


def main() -> None:
    options = parse()
    exit_on_sigterm()
    folder = dummy_folder(SHAPE)
    write_filled_tokenizer(folder, SHAPES[SHAPE]["vocab_size"])
    print("hotloop", flush=True)
    with ChildServer(["--model", str(folder), "--load-format", "dummy", *shlex.split(options.flags)]) as server:
        measure(server.url, options)
    if options.peer:
        print(options.peer.partition(" ")[0], flush=True)
        with serving(options.peer, folder) as url:
            measure(url, options)


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="recorded sessions, with names of 64-token blocks")
    parser.add_argument("--sessions", type=int, nargs="+", default=[8, 16, 32], help="at once, a run of its own each")
    parser.add_argument("--requests", type=int, default=8, help="of each session")
    parser.add_argument("--stagger", type=float, default=0.5, help="seconds between the starts of sessions")
    parser.add_argument("--limit", type=float, help="seconds of a run after which to say what there is")
    parser.add_argument("--flags", default="--max-running 256", help="of hotloop serve")
    parser.add_argument("--peer", help="command of another server; {folder} is the model, {port} where to listen")
    return parser.parse_args()


def measure(url: str, options: Namespace) -> None:
    vocab = SHAPES[SHAPE]["vocab_size"] - 1000
    for count in options.sessions:
        run = Namespace(**vars(options) | {"url": url, "sessions": count, "salt": str(time.time_ns()), "vocab": vocab})
        print(asyncio.run(recorded_agents.measure(run)), flush=True)
    beside = Namespace(url=url, rounds=3, long=8000, short=100, every=0.1, vocab=vocab)
    asyncio.run(short_beside_long.measure(beside))


@contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """A server of somebody else's, until we are done with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(shlex.split(command.format(folder=folder, port=port)), stdout=sys.stderr)
    url, began_at = f"http://127.0.0.1:{port}", time.monotonic()
    try:
        while not is_healthy(url):
            if process.poll() is not None or time.monotonic() - began_at > _MAX_START_S:
                raise SystemExit(f"{command.partition(' ')[0]} did not start")
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    main()
