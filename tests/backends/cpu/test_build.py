"""Libraries of ours: kept once compiled, made again if not whole, and errors that say what is wrong."""

import ctypes
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotloop.backends.cpu import build
from hotloop.backends.cpu.build import Library, compiler, make

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


ANSWER = 'extern "C" int answer() { return 42; }'


def write_source(folder: Path, text: str = ANSWER) -> str:
    source = folder / "source.cpp"
    source.write_text(text)
    return str(source)


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def test_half_a_library_is_compiled_again(tmp_path: Path) -> None:
    path, size = tmp_path / "library.so", tmp_path / "library.so.size"
    path.write_bytes(b"half")
    size.write_text("1000")
    make(path, "-shared", "-fPIC", write_source(tmp_path))
    assert answer(path) == 42
    assert size.read_text() == str(path.stat().st_size)


def test_what_was_compiled_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    for text in (ANSWER, "int x = nonsense;"):
        make(path, "-shared", "-fPIC", write_source(tmp_path, text))
    assert answer(path) == 42


def test_a_checkout_elsewhere_compiles_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "answer.cpp").write_text(ANSWER)
        monkeypatch.setattr(build, "SOURCES", folder)
        objects.append(Library({"answer.cpp": ()}).objects(tmp_path, "native"))
    assert objects[0] == objects[1]


def test_one_compiles_for_all_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, compile_really = list[Path](), build._compile

    def compile_slowly(path: Path, arguments: tuple[str, ...]) -> None:
        compiled.append(path)
        time.sleep(0.05)
        compile_really(path, arguments)

    monkeypatch.setattr(build, "_compile", compile_slowly)
    path, source = tmp_path / "library.so", write_source(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(make, path, "-shared", "-fPIC", source) for _ in range(4)]:
            made.result()
    assert compiled == [path]
    assert answer(path) == 42


def test_the_compilers_error_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nonsense"):
        make(tmp_path / "library.so", "-shared", write_source(tmp_path, "int x = nonsense;"))
    assert not list(tmp_path.glob("*.so"))


def test_libraries_share_what_is_the_same_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = list[str]()

    def pretend(path: Path, arguments: tuple[str, ...]) -> None:
        compiled.append(path.name)
        path.touch()

    monkeypatch.setattr(build, "_compile", pretend)
    first, second = (build.LIBRARIES[kv].objects(tmp_path, "native") for kv in ("half", "float"))
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert sorted(compiled) == sorted({Path(path).name for path in first + second})
    assert build.LIBRARIES["half"].objects(tmp_path, "native", "-O1")[0] != first[0]


def test_what_a_wheel_brings_needs_no_compiler(
    tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make test-wheel` does the same with libraries as zig builds them."""
    if not (cpus := list(build.usable_cpus(build.LIBRARIES["float"]))):
        pytest.skip("no wheel has libraries for this CPU")
    shutil.copy(build.load_library("float")._name, tmp_path / f"decoder-{cpus[0]}.so")
    monkeypatch.setattr(build, "home", lambda: empty_home)
    monkeypatch.setattr(build, "_FROM_WHEEL", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert build.load_library("float").decoder_step
    assert not list(empty_home.rglob("*.so"))


def test_apples_compilers_are_told_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, target in (("arm64", "-mcpu=apple-m1"), ("x86_64", "-march=native")):
        monkeypatch.setattr(build.platform, "machine", lambda machine=machine: machine)
        assert build._target("native") == target
        assert list(build.usable_cpus(build.LIBRARIES["half"])) != [] or machine == "x86_64"


def test_a_machine_that_no_library_is_for_gets_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="riscv64"):
        build.build_for_wheel(tmp_path, "riscv64")


def test_a_wheel_has_one_library_for_each_kind_of_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, linked, called = list[Path](), dict[str, list[str]](), list[str]()

    def pretend(path: Path, arguments: tuple[str, ...], program: Sequence[str] = ()) -> None:
        if "-shared" in arguments:
            linked[path.name] = [each for each in arguments if each.endswith(".o")]
            called.extend(each for each in arguments if "install_name" in each)
        else:
            compiled.append(path)

    monkeypatch.setattr(build, "_compile", pretend)
    monkeypatch.setattr(build.platform, "system", lambda: "Linux")
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: object())
    for machine in ("x86_64", "aarch64", "arm64"):
        libraries, _ = build.build_for_wheel(tmp_path, machine)
        assert [path.name for path in libraries] == [f"decoder-{march}.so" for march in build._CPUS[machine]]
        assert sorted(linked) == sorted(path.name for path in libraries)
        used = [each for objects in linked.values() for each in objects]
        assert sorted(used) == sorted(map(str, compiled)), "each object is compiled once, for one library"
        for name, objects in linked.items():
            assert len(objects) == (6 if "sapphirerapids" in name else 4), "the decoder, and attention for each type"
        compiled.clear()
        linked.clear()
    assert called == [f"-Wl,-install_name,@rpath/decoder-{march}.so" for march in build._CPUS["arm64"]]


def test_the_best_of_what_this_cpu_can_run_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = {platform.machine(): {"best": {"rare"}, "good": {"common"}, "any": set[str]()}}
    library = build.Library({"source.cpp": ()}, cpus=cpus)
    monkeypatch.setattr(build, "cpu_features", lambda: frozenset({"common", "other"}))
    assert list(build.usable_cpus(library)) == ["good", "any"]


def test_a_cpu_that_a_library_is_not_for_is_told_so(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "cpu_features", frozenset)
    with pytest.raises(OSError, match="no AMX"):
        build.load_library("bf16")


def test_a_wheel_is_built_however_long_that_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build, "_COMPILE_TIMEOUT_S", 0)
    program = (sys.executable, "-c", "import pathlib, sys; pathlib.Path(sys.argv[-1]).touch()")
    build._compile(tmp_path / "made.so", (), program)
    assert (tmp_path / "made.so").exists()
