"""The process of a rank above 0 (`python -m hotloop.backends.cuda.worker SOCKET`): it has its share of the model, and
does with it what rank 0 does with its own.

It ends with rank 0, whatever it is doing and however that ended: its socket is closed then.
"""

import os
import pickle
import select
import signal
import sys
import threading
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from hotloop.backends.cuda.attention.flash import find_flash
from hotloop.backends.cuda.failure import first_line
from hotloop.backends.cuda.parallel.ranks import TIMEOUT_S
from hotloop.backends.cuda.parallel.workers import Plan, RankInfo, memory_of
from hotloop.backends.cuda.runner import BLOCK_SIZE, CudaBackend
from hotloop.core.config import LoadFormat
from hotloop.models.layout import share_of
from hotloop.models.model import load_model


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # rank 0 has requests to end first
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    try:
        _serve(connection)
    except Exception as error:
        connection.send(first_line(error))
        raise


def _end_with(fileno: int) -> None:
    """Wait until nobody has the other end of the socket."""
    poll = select.poll()
    poll.register(fileno, 0)  # 0: its end is all that is reported
    poll.poll()
    os._exit(0)


def _serve(connection: Connection) -> None:
    info: RankInfo = connection.recv()
    if torch.device(info.device).type == "cuda":
        torch.cuda.set_device(info.device)
    connection.send(memory_of(info.device))
    opened: tuple[str, LoadFormat, int, Plan, bool] | None = connection.recv()
    if opened is None:
        return
    path, load_format, kv_bytes, plan, has_flash = opened
    store = dist.TCPStore("127.0.0.1", info.port, is_master=False, timeout=timedelta(seconds=TIMEOUT_S))
    group = info.join(store)
    model = load_model(path, load_format=load_format)
    flash = find_flash(share_of(model.spec, info.num_ranks), BLOCK_SIZE, plan.dtype) if has_flash else None
    backend = CudaBackend(model, kv_bytes, plan, device=info.device, flash=flash, group=group)
    while message := pickle.loads(connection.recv_bytes()):
        method, arguments = message
        getattr(backend, method)(*arguments)
    group.close()


if __name__ == "__main__":
    main()
