"""Libraries of ours: kept once compiled, made again if not whole, and errors that say what is wrong."""

import platform
from pathlib import Path

import pytest

from hotloop.backends import build as build_module
from hotloop.backends.build import build, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def write_source(folder: Path, text: str) -> str:
    source = folder / "source.cpp"
    source.write_text(text)
    return str(source)


def test_half_a_library_is_compiled_again(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"half")
    path.with_suffix(".size").write_text("1000")
    assert build(path, write_source(tmp_path, 'extern "C" int answer() { return 42; }')).answer() == 42
    assert path.with_suffix(".size").read_text() == str(path.stat().st_size)


def test_what_was_compiled_is_kept(tmp_path: Path) -> None:
    path, source = tmp_path / "library.so", write_source(tmp_path, 'extern "C" int answer() { return 42; }')
    build(path, source)
    Path(source).unlink()
    assert build(path, source).answer() == 42


def test_the_compilers_error_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nonsense"):
        build(tmp_path / "library.so", write_source(tmp_path, "int x = nonsense;"))
    assert [each.name for each in tmp_path.iterdir()] == ["source.cpp"]


def test_what_a_wheel_brings_needs_no_compiler(
    tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "LIBRARIES", {"linear": build_module.LIBRARIES["linear"]})
    made, tag = build_module.build_for_wheel(tmp_path)
    assert tag.startswith("manylinux_")
    assert made
    monkeypatch.setattr(build_module, "_FROM_WHEEL", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert build_module.load_library("linear").linear_run
    assert not list(empty_home.rglob("*.so"))


def test_the_best_of_what_this_cpu_can_run_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = {platform.machine(): {"best": {"rare"}, "good": {"common"}, "any": set[str]()}}
    library = build_module.Library(("source.cpp",), cpus=cpus)
    monkeypatch.setattr(build_module, "cpu_features", lambda: frozenset({"common", "other"}))
    assert list(build_module.usable_cpus(library)) == ["good", "any"]


def test_a_cpu_that_a_library_is_not_for_is_told_so(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "cpu_features", frozenset)
    with pytest.raises(OSError, match="no AMX"):
        build_module.load_library("decoder-bf16")
