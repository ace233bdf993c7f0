"""The engine at one moment, in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

from hotloop.core.request import FinishReason, Priority, Usage
from hotloop.engine.core import EngineCore
from hotloop.engine.disk.store import DiskStats
from hotloop.engine.grammar.matcher import Grammars
from hotloop.engine.host import HostStats


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment. The totals only grow; a request is part of them once it has ended."""

    num_running: int
    num_waiting: Mapping[Priority, int]
    num_blocks: int
    num_blocks_used: int
    num_blocks_cached: int
    num_steps: int
    usage: Usage
    num_grammar_hits: int
    num_grammar_misses: int
    num_evicted_blocks: int
    num_preemptions: int
    num_seated: int  # sessions under way: those that are served, and those that are expected back
    num_swapped: int  # sessions that had to make room for others, and wait in their turn
    num_finished: Mapping[FinishReason, int]
    disk: DiskStats
    host: HostStats


def count_up(core: EngineCore, grammars: Grammars) -> EngineStats:
    """May be asked on any thread."""
    scheduler = core.scheduler
    waiting = [request.priority for request in list(scheduler.waiting.values())]
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting={priority: waiting.count(priority) for priority in Priority},
        num_blocks=scheduler.pool.num_blocks,
        num_blocks_used=scheduler.pool.num_used,
        num_blocks_cached=scheduler.pool.num_idle,
        num_steps=core.num_steps,
        usage=core.usage,
        num_grammar_hits=grammars.num_hits,
        num_grammar_misses=grammars.num_misses,
        num_evicted_blocks=scheduler.tree.num_evicted,
        num_preemptions=scheduler.num_preemptions,
        num_seated=len(scheduler.admission.seated),
        num_swapped=scheduler.admission.num_swapped,
        num_finished=dict(core.num_finished),
        disk=core.disk_stats(),
        host=core.host_stats(),
    )
