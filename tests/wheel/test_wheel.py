"""A built wheel: which systems it installs on, and that its libraries are what loads: `make test-wheel`."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hotloop.backends.cpu import build

WHEEL = os.environ.get("HOTLOOP_WHEEL", "")
pytestmark = pytest.mark.skipif(not WHEEL, reason="HOTLOOP_WHEEL is not set: make test-wheel")
OLDEST = (2, 28)
"""That of RHEL 8; Ubuntu 22.04 has 2.35 and RHEL 9 has 2.34."""


def glibc_of(text: str) -> tuple[int, int]:
    [tag] = re.findall(r"manylinux_(\d+)_(\d+)_\w+", text)
    return int(tag[0]), int(tag[1])


def test_it_installs_where_glibc_is_old_and_says_so() -> None:
    command = [sys.executable, "-m", "auditwheel", "show", WHEEL]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [allowed] = re.findall(r"consistent with\s+the following platform tag:\s+(\S+)", shown)
    assert glibc_of(allowed) <= glibc_of(Path(WHEEL).name) <= OLDEST, shown


def test_its_page_has_no_link_that_leads_nowhere() -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        head, _, page = wheel.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert page.startswith("# hotloop\n")
    links = re.findall(r"\]\((\S+?)\)|(?:src|srcset)=\"(\S+?)\"", page)
    assert [link for link in map("".join, links) if not link.startswith("https://")] == []


@pytest.mark.parametrize("name", build.LIBRARIES)
def test_its_libraries_are_what_loads(name: str) -> None:
    if not any(build.usable_cpus(build.LIBRARIES[name])):
        pytest.skip("not for this CPU")
    assert Path(build.load_library(name)._name).parent == build._FROM_WHEEL
