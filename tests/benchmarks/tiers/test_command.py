"""`python -m benchmarks.tiers` as a program would call it."""

import json
from pathlib import Path

import pytest
from benchmarks.tiers.__main__ import TiersFlags, tiers
from tests.bench.fake_tools import FakeToolServer
from tests.bench.test_bfcl import FUNCTION, row, write

from hotloop.core.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "simple_python.jsonl.gz", [row(i) for i in range(3)])
    other = {**FUNCTION, "name": "volume.of"}
    write(tmp_path / "multiple.jsonl.gz", [row(i, functions_raw=[FUNCTION, other]) for i in range(2)])
    write(tmp_path / "parallel.jsonl.gz", [row(9)])
    return tmp_path


def test_servers_that_run(folder: Path, capsys: pytest.CaptureFixture[str]):
    with FakeToolServer(lambda _: [("area.of", '{"base": 3}')]) as server:
        flags = TiersFlags(small_url=server.url, large_url=f"{server.url}/v1", data=folder, questions=1)
        tiers(flags=flags, as_json=True)
        values = json.loads(capsys.readouterr().out)
        tiers(flags=flags)
        table = capsys.readouterr().out
    assert [way["label"] for way in values["ways"]] == [
        "always large",
        "always small",
        "tiers, rules",
        "tiers, cascade",
    ]
    assert [way["num_questions"] for way in values["ways"]] == [6] * 4
    assert values["ways"][0]["right_by_kind"]["call"] == [1, 1]
    assert "latency, mean" in table


def test_each_tier_needs_a_model_or_an_address(folder: Path):
    with pytest.raises(ConfigError, match="give either --small or --small-url"):
        tiers(flags=TiersFlags(large="x", data=folder))
    with pytest.raises(ConfigError, match="give either --large or --large-url"):
        tiers(flags=TiersFlags(small="x", large="x", large_url="http://127.0.0.1:1", data=folder))
    with pytest.raises(ConfigError, match="is not a folder"):
        tiers(flags=TiersFlags(data=folder / "parallel.jsonl.gz"))
