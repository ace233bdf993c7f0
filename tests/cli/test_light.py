"""What is installed without an extra: which commands run, and what the others say."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.bench.fake_server import FakeServer

from hotloop.core.extras import EXTRA_OF, line_to_type, missing_extra

ROOT = Path(__file__).parents[2]
_WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({[*EXTRA_OF]}));"
_NOBODY = "http://127.0.0.1:1"


_RUN = f"""{_WITHOUT}
import contextlib, io, json
from hotloop.cli.main import run

report = sys.stdout
for argv in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = run(argv.split())
    print(json.dumps([status, output.getvalue(), errors.getvalue()]), file=report, flush=True)
"""
NEEDING_NONE = {
    "lint --list": (0, "HL001"),
    "trace ls --trace none.db": (2, "nothing was recorded there yet"),
    "models": (0, "hotloop pull smollm2-135m"),
    "version": (0, "python"),
    f"doctor {_NOBODY}": (1, f"cannot reach {_NOBODY}"),
    f"chat --url {_NOBODY}": (1, f"cannot reach {_NOBODY}"),
    f"bench replay --url {_NOBODY}": (1, f"cannot reach {_NOBODY}"),
    f"run examples/shop.py hi --url {_NOBODY}": (1, f"{_NOBODY} cannot be reached"),
    f"route --port 99999 --replica {_NOBODY}": (2, "port must be between 0 and 65535"),
    "simulate none.jsonl": (2, "cannot read none.jsonl"),
    "predict show none.json": (2, "cannot read none.json"),
}
NEEDING_AN_ENGINE = ("serve --port 0", "pull", "size", "demo", "lint --tokenizer default x")


class Ran(NamedTuple):
    status: int
    stdout: str
    stderr: str


def python(*argv: str, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HOTLOOP_HOME": str(home)}
    command = [sys.executable, *argv]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, cwd=ROOT, check=False)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All commands, one after another in a process where no package is to be found that only an extra brings."""
    argvs = [*NEEDING_NONE, *NEEDING_AN_ENGINE]
    done = python("-c", _RUN, home=tmp_path_factory.mktemp("home"), stdin=json.dumps(argvs))
    assert done.returncode == 0, done.stderr
    return {argv: Ran(*json.loads(line)) for argv, line in zip(argvs, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("argv", NEEDING_NONE)
def test_what_needs_no_engine_runs(argv: str, ran: dict[str, Ran]):
    status, said = NEEDING_NONE[argv]
    assert said in ran[argv].stdout + ran[argv].stderr
    assert ran[argv].status == status


@pytest.mark.parametrize("argv", NEEDING_AN_ENGINE)
@pytest.mark.long
def test_what_needs_an_engine_says_the_one_line_to_type(argv: str, ran: dict[str, Ran]):
    what = f"hotloop {argv.split()[0]}"
    line = "pip install 'hotloop[cpu]', or 'hotloop[cuda]' for an NVIDIA GPU"
    assert ran[argv] == (2, "", f"hotloop: {what} needs the extra `cpu`: {line}\n")


@pytest.mark.long
def test_the_doctor_examines_a_server(tmp_path: Path):
    with FakeServer() as server:
        main = f"{_WITHOUT} from hotloop.cli.main import main; main()"
        done = python("-c", main, "doctor", server.url, "--idle", "0", "--json", home=tmp_path)
    assert json.loads(done.stdout)["findings"]


def test_a_name_of_the_package_says_it_too():
    code = f"{_WITHOUT} from hotloop import Agent, tool; from hotloop import Engine"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: hotloop.Engine needs the extra `cpu`: pip install 'hot"
    )


def test_each_of_those_packages_is_in_the_extra_that_is_named():
    assert find_spec("numpy")
    assert str(missing_extra(ModuleNotFoundError(name="ray.serve"), "it")) == (
        "it needs the extra `ray`: pip install 'hotloop[ray]'"
    )
    assert missing_extra(ModuleNotFoundError(name="nonsense"), "it") is None


@pytest.mark.parametrize(
    ("marker", "line"),
    [
        ("bin/python", "pip install 'hotloop[cpu]'"),
        ("pipx_metadata.json", "pipx install --force 'hotloop[cpu]'"),
        ("uv-receipt.toml", "uv tool install 'hotloop[cpu]'"),
        ("archive-v0/x9/bin/python", "uvx --from 'hotloop[cpu]' hotloop serve"),
    ],
)
def test_the_line_to_type_is_that_of_what_made_the_environment(tmp_path: Path, marker: str, line: str):
    file = tmp_path / marker
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    prefix = tmp_path / "archive-v0" / "x9" if "archive" in marker else tmp_path
    assert line_to_type(prefix, "cpu", "hotloop serve") == line
