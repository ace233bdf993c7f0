"""a deployment of small engines, as a process of its own: Ray, and what it warns of, stays out of the tests' process.

python -m tests.ray.tiny PORT      prints how many replicas run, again and again
"""

import os
import sys
import time
from typing import TYPE_CHECKING

from tests.engine.tiny import TOKENIZER
from tests.server.serving import CHATML, MODEL

from hotloop.backends.backend import Batch
from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.engine.engine import Engine
from hotloop.models.template import ChatTemplate
from hotloop.ray.config import RayConfig
from hotloop.ray.processes import HotloopProcess

if TYPE_CHECKING:
    from hotloop.ray.cluster import Status

STEP_S = 0.02
"""A step takes its time, so that requests overlap."""
POISON = "\x07" * 8
"""Whoever reads this dies of it a few tokens later."""
_DYING_STEPS = 5


class Pace:
    """Called before every step."""

    def __init__(self) -> None:
        self._poison = TOKENIZER.encode(POISON)
        self._steps_left: int | None = None

    def __call__(self, batch: Batch) -> None:
        time.sleep(STEP_S)
        if (batch.token_ids == self._poison[0]).sum() >= len(self._poison):
            self._steps_left = _DYING_STEPS
        if self._steps_left is not None:
            self._steps_left -= 1
            if not self._steps_left:
                os._exit(1)


def open_tiny() -> HotloopProcess:
    size = {"block_size": 16, "num_blocks": 1024, "max_context": 4096}
    backend = NullBackend(**size, vocab_size=TOKENIZER.vocab_size, on_run=Pace())
    template = ChatTemplate(CHATML, bos_token="", eos_token="<|im_end|>")
    engine = Engine(TOKENIZER, backend, EngineConfig(drafts=False), name=MODEL, template=template)
    return HotloopProcess(engine, ServerConfig())


def tiny_config(port: int) -> RayConfig:
    """Two replicas as soon as there are more than four requests, one as soon as there are fewer."""
    return RayConfig(
        port=port,
        max_replicas=2,
        target_ongoing=4,
        upscale_delay_s=0,
        downscale_delay_s=0,
        look_back_s=1,
        drain_timeout_s=60,
        cpus=0.25,
    )


def main(port: int) -> None:
    from hotloop.ray import cluster  # noqa: PLC0415 - the tests import this module where there is no Ray
    from hotloop.ray.app import build  # noqa: PLC0415

    config = tiny_config(port)
    with cluster.connected(None):
        cluster.deploy(build(config, open_tiny), config)
        cluster.watch(_say)


def _say(status: "Status") -> None:
    sys.stdout.write(f"{status.num_running}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
