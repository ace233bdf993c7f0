"""The measurements measure what they say; what they find is for `make bench` to show."""

import io
import json

from benchmarks.overhead import OverheadReport, measure_match, measure_steps
from benchmarks.vocabularies import null_tokenizer
from rich.console import Console


def test_only_steps_in_which_everybody_gets_a_token_count():
    cost = measure_steps(4, vocab_size=500, num_output=12)
    assert cost.num_running == 4
    assert 0 < cost.num_steps <= 12
    assert 0 < cost.p50_ms <= cost.p95_ms


def test_the_tree_is_as_large_as_asked_for():
    cost = measure_match(num_tokens=3200, num_blocks=500)
    assert (cost.num_tokens, cost.num_blocks) == (3200, 500)
    assert 0 < cost.p50_ms <= cost.p95_ms


def test_the_report_is_a_table_and_json():
    report = OverheadReport(500, (measure_steps(2, 500, 4),), measure_match(320, 200))
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(report.to_table())
    assert "a step of 2 requests" in capture.get()
    assert json.loads(json.dumps(report.to_json()))["match"]["num_blocks"] == 200


def test_the_null_tokenizer_never_ends_a_turn():
    tokenizer = null_tokenizer(100)
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (100, frozenset())
    assert tokenizer.decode([1, 2]) == "w1w2"
