"""Does an engine that is closed leave anything behind? Load, generate, cut off and close, over and over in one process.

Requests are cut off in each of the ways there are: by an abort, by closing the engine while they run, before their
first token and after it. A crash ends the run; memory, file handles and threads are told as they go.
"""

import os
import threading
from pathlib import Path

from cyclopts.types import PositiveInt

from benchmarks.command import main
from benchmarks.soak import rss_bytes
from hotloop.cli.loading import console
from hotloop.core.config import DEFAULT_MODEL, EngineConfig
from hotloop.core.request import Request, SamplingParams, TokenEvent
from hotloop.engine.engine import Engine

_NUM_REQUESTS = 4
_NUM_LINES = 20


def run_cycle(model: str, index: int, config: EngineConfig) -> None:
    """One engine's life. The index chooses how its requests are cut off."""
    has_begun, all_ended = threading.Event(), threading.Event()
    num_ended = 0

    def hear(event: TokenEvent) -> None:
        nonlocal num_ended
        has_begun.set()
        num_ended += event.finish_reason is not None
        if num_ended == _NUM_REQUESTS:
            all_ended.set()

    engine = Engine.load(model, config, device="cpu").start()
    prompt = engine.tokenizer.encode("Once upon a time there was a")
    requests = [
        Request(f"{index}-{i}", [*prompt, i], SamplingParams(max_tokens=200, ignore_eos=True))
        for i in range(_NUM_REQUESTS)
    ]
    engine.submit(requests, hear)
    if index % 3:
        has_begun.wait()
    if index % 2:
        engine.abort(*(request.id for request in requests[:2]))
    engine.close()
    assert all_ended.is_set(), "each request ends in a terminal event"


def restarts(model: str = DEFAULT_MODEL, *, cycles: PositiveInt = 50, kv_memory: str = "64MB") -> None:
    """Load an engine, cut its requests off and close it, and see what the process keeps.

    Parameters
    ----------
    model
        Its name or path.
    cycles
        How often.
    kv_memory
        Room for KV.
    """
    for index in range(cycles):
        run_cycle(model, index, EngineConfig(kv_memory=kv_memory))
        if index < 2 or (index + 1) % max(1, cycles // _NUM_LINES) == 0:
            num_files, num_threads = (len(os.listdir(Path("/proc/self") / name)) for name in ("fd", "task"))
            held = f"{rss_bytes() / 1e6:6.0f} MB  {num_files:3} files  {num_threads:3} threads"
            console.print(f"{index + 1:5} cycles  {held}")


if __name__ == "__main__":
    main(restarts)
