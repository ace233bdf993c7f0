"""The keys that are good, and where they come from."""

from pathlib import Path

import pytest

from hotloop.border.requests import has_key, read_keys
from hotloop.core.errors import ConfigError


def test_keys_are_given_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the first team\nsk-one\n\n  sk-two  \nclé\n")
    assert read_keys(None, None) == ()
    assert read_keys("sk-zero", None) == (b"sk-zero",)
    keys = read_keys("sk-zero", str(file))
    assert keys == (b"sk-zero", b"sk-one", b"sk-two", "clé".encode())
    for key in keys:
        assert has_key({b"authorization": b"Bearer " + key}, keys)
        assert has_key({b"x-api-key": key}, keys)
    for wrong in (b"", b"# of the first team", b"sk-on", b"sk-one\nsk-two"):
        assert not has_key({b"authorization": b"Bearer " + wrong, b"x-api-key": wrong}, keys)
    assert not has_key({}, keys)


@pytest.mark.parametrize("content", [b"", b"# none\n\n", b"\xff\xfe"])
def test_a_file_without_a_key_is_an_error_and_not_an_open_door(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="keys"):
        read_keys(None, str(file))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the API keys in"):
        read_keys("given", str(tmp_path / "none"))
