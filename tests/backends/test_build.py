"""Libraries of ours: kept once compiled, made again if not whole, and errors that say what is wrong."""

from pathlib import Path

import pytest

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
