"""`hotloop doctor` as a program would call it."""

import json

import pytest
from tests.server.serving import Serving

from hotloop.cli.advice.doctor import default_url, doctor
from hotloop.core.errors import RemoteError


def test_it_says_what_it_found(capsys: pytest.CaptureFixture[str]):
    with Serving(num_blocks=4096) as serving:
        code = doctor(serving.url, idle=0.0, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert code == int(values["failed"])
    assert (values["url"], values["model"], values["kind"]) == (serving.url, "tiny", "hotloop")
    assert len(values["findings"]) == 9


@pytest.mark.long
def test_it_says_so_in_a_table(capsys: pytest.CaptureFixture[str]):
    with Serving(num_blocks=4096) as serving:
        doctor(f"{serving.url}/v1", idle=0.0, model="tiny")
    assert "prefix cache" in capsys.readouterr().out


def test_nobody_there():
    with pytest.raises(RemoteError, match="cannot reach"):
        doctor("http://127.0.0.1:9")


def test_without_an_address_it_is_where_serve_listens():
    assert default_url() == "http://127.0.0.1:8700"
