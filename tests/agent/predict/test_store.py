"""What was learned, on disk."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.predict.talks import clerk

from hotloop.agent.predict.history import History
from hotloop.agent.predict.predictor import Predictor, load_predictor, save_predictor
from hotloop.core.errors import ConfigError


@pytest.fixture
def predictor() -> Predictor:
    predictor = Predictor()
    for number in range(12):
        predictor.learn(clerk(number))
    return predictor


def test_what_is_read_is_what_was_written(predictor: Predictor, tmp_path: Path):
    path = tmp_path / "new folder" / "speculation.json"
    save_predictor(predictor, path)
    loaded = load_predictor(path)
    assert msgspec.json.encode(loaded) == msgspec.json.encode(predictor)
    history = History().follow(clerk(50)[:3])
    expected = [(each.key, pytest.approx(each.confidence, abs=1e-3)) for each in predictor.predict(history)]
    assert [(each.key, each.confidence) for each in loaded.predict(history)] == expected
    assert path.stat().st_mode & 0o077 == 0
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def damages() -> dict[str, Any]:
    return {
        "no JSON": lambda state: b"{",
        "no text": lambda state: b"\xff\xfe",
        "nothing": lambda state: b"",
        "a list": lambda state: b"[]",
        "another version": lambda state: json.dumps(state | {"version": 99}).encode(),
        "a field too many": lambda state: json.dumps(state | {"more": 1}).encode(),
        "no calibration": lambda state: json.dumps(state | {"calibrations": {}}).encode(),
        "a negative count": lambda state: json.dumps(state | {"num_runs": -1}).encode(),
        "a broken constant": lambda state: json.dumps(
            state
            | {
                "tools": {
                    "t": {"recipes": [{"sources": [["a", ["constant", "", "{"]]], "tallies": {}}], "arguments": {}}
                }
            }
        ).encode(),
    }


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_is_one_clear_line(damage: str, predictor: Predictor, tmp_path: Path):
    path = tmp_path / "speculation.json"
    path.write_bytes(damages()[damage](json.loads(msgspec.json.encode(predictor))))
    with pytest.raises(ConfigError, match=r"speculation\.json is not a predictor's file"):
        load_predictor(path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        load_predictor(tmp_path / "none.json")


def test_a_place_that_cannot_be_written(predictor: Predictor, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        save_predictor(predictor, tmp_path / "file" / "speculation.json")
