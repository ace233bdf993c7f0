"""The soak's load wears the engine as it should, and the engine survives it."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.soak import Asked, find_faults, open_null, run_soak
from rich.console import Console

from hotloop.core.grammar import Grammar
from hotloop.core.request import FinishReason, Request, SamplingParams, TokenEvent, Usage


@pytest.mark.long
def test_a_short_soak_finishes_aborts_evicts_and_leaks_nothing():
    report = run_soak(*open_null(), 1.0, num_warming_blocks=1)
    assert report.num_finished > 0
    assert report.num_aborted > 0
    assert (report.num_failed, report.num_leaked_blocks, report.faults) == (0, 0, ())
    assert report.first.rss_bytes > 0
    assert json.loads(json.dumps(report.to_json()))["num_steps"] == report.num_steps
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        console.print(report.to_table())
    assert "0 leaked" in capture.get()


def ended(text: str, reason: FinishReason, **fields: Any) -> Asked:
    """The last grammar wants two words."""
    request = Request("1", [1], SamplingParams(max_tokens=8, **fields), grammar=Grammar("lark", "start: WORD WORD "))
    last = TokenEvent("1", (3,), text, Usage(1, 0, 1), finish_reason=reason)
    return Asked(request, None, [3], text=text, last=last)


def test_answers_that_are_not_what_was_asked_for_are_found():
    assert not [*find_faults(ended("w12w34", FinishReason.STOP))]
    assert [*find_faults(ended("w12", FinishReason.STOP))] == ["does not obey its grammar: 'w12'"]
    assert [*find_faults(ended("", FinishReason.ABORT))] == ["was aborted by nobody"]
    assert [*find_faults(ended("", FinishReason.LENGTH, logprobs=1))] == ["has logprobs of something else"]
    longer = replace(ended("", FinishReason.LENGTH), token_ids=[3] * 9)
    assert [*find_faults(longer)] == ["has 9 tokens, 1 by its usage, of at most 8"]


@pytest.mark.long
def test_memory_is_what_a_process_has():
    """One of its own: what a worker of these tests frees meanwhile would count as well."""
    program = """
from benchmarks.soak import rss_bytes
before = rss_bytes()
ballast = bytearray(b"x") * 400_000_000
print(rss_bytes() - before)
"""
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(grown.stdout) > 350_000_000
