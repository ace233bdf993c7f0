"""The engine at one moment, in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

from hotloop.core.request import FinishReason, Priority
from hotloop.engine.disk.store import DiskStats


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment. The totals only grow."""

    num_running: int
    num_waiting: Mapping[Priority, int]
    num_blocks: int
    num_blocks_used: int
    num_blocks_cached: int
    num_steps: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_sampled_tokens: int
    num_forced_tokens: int
    num_drafted_tokens: int
    num_accepted_tokens: int
    num_restored_tokens: int
    num_grammar_hits: int
    num_grammar_misses: int
    num_evicted_blocks: int
    num_preemptions: int
    num_finished: Mapping[FinishReason, int]
    disk: DiskStats
