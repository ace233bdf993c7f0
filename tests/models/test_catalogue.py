from collections.abc import Callable
from pathlib import Path

import pytest
from tests.models.tiny import tiny_spec, tiny_weights, write_folder, write_gguf

from hotloop.core.errors import ModelError
from hotloop.core.home import home
from hotloop.models.catalogue import Reference, list_models, parse_reference
from hotloop.models.model import load_model, pull

SPEC = tiny_spec("qwen2", num_layers=1)


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "My Model.gguf", SPEC, tiny_weights(SPEC))


def offline(requirement: str, folder: Path, report: Callable[[int], None]) -> None:
    raise ModelError(f"{requirement} could not be downloaded: no network")


def test_home_is_where_the_environment_says(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home() == empty_home
    monkeypatch.delenv("HOTLOOP_HOME")
    assert home().name == "hotloop"


def test_the_default_is_listed_before_it_is_pulled(empty_home: Path) -> None:
    (entry,) = list_models()
    assert (entry.name, entry.kind, entry.family, entry.max_context) == ("smollm2-135m", "gguf", "llama", 8192)
    assert not entry.is_pulled
    with pytest.raises(
        ModelError, match="the model smollm2-135m is not downloaded yet: run `hotloop pull smollm2-135m`"
    ):
        load_model("smollm2-135m")


def test_a_pull_that_fails_leaves_the_default_unpulled(empty_home: Path) -> None:
    with pytest.raises(ModelError, match="could not be downloaded: no network"):
        pull("smollm2-135m", download=offline)
    assert not list_models()[0].is_pulled


def test_a_home_that_cannot_be_written_says_so(empty_home: Path) -> None:
    empty_home.write_text("a file in its place")
    with pytest.raises(ModelError, match=r"smollm2-135m\.gguf could not be written: Not a directory"):
        pull("smollm2-135m", download=offline)


def test_a_local_file_is_registered_where_it_lies(empty_home: Path, gguf_path: Path) -> None:
    entry = pull(str(gguf_path))
    assert entry.name == "My-Model"
    assert (entry.kind, entry.family, entry.max_context) == ("gguf", "qwen2", 512)
    assert entry.path == gguf_path
    assert entry.size_bytes == gguf_path.stat().st_size
    assert list_models()[1:] == [entry]
    assert load_model("My-Model").path == gguf_path
    assert load_model("My-Model").name == "My-Model"
    assert pull("My-Model") == entry


def test_a_local_folder_is_registered_where_it_lies(empty_home: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny-qwen", SPEC, tiny_weights(SPEC))
    entry = pull(str(folder))
    assert (entry.name, entry.kind, entry.path) == ("tiny-qwen", "huggingface", folder)
    assert entry.size_bytes > (folder / "model.safetensors").stat().st_size
    assert load_model("tiny-qwen").spec == SPEC


def test_a_model_that_is_gone_is_listed_as_such(empty_home: Path, gguf_path: Path) -> None:
    pull(str(gguf_path))
    gguf_path.unlink()
    assert not list_models()[1].is_pulled
    with pytest.raises(ModelError, match="the model My-Model is gone: there is nothing at"):
        load_model("My-Model")
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        pull("My-Model")


def test_a_model_that_cannot_be_read_is_not_registered(empty_home: Path, gguf_path: Path) -> None:
    gguf_path.write_bytes(gguf_path.read_bytes()[:-4000])
    with pytest.raises(ModelError, match="is cut short"):
        pull(str(gguf_path))
    assert len(list_models()) == 1


def test_a_known_name_is_not_given_away(empty_home: Path, gguf_path: Path) -> None:
    renamed = gguf_path.rename(gguf_path.with_name("smollm2-135m.gguf"))
    with pytest.raises(ModelError, match="the name smollm2-135m is taken"):
        pull(str(renamed))


def test_a_damaged_registration_is_ignored(empty_home: Path, gguf_path: Path) -> None:
    pull(str(gguf_path))
    for damage in ("{", "[]", '{"path": "/x"}', '{"path": 3}'):
        (empty_home / "registered" / "My-Model.json").write_text(damage)
        assert len(list_models()) == 1
    pull(str(gguf_path))
    assert len(list_models()) == 2


@pytest.mark.parametrize("action", [pull, load_model])
def test_an_unknown_name_says_what_there_is(empty_home: Path, action: Callable[[str], object]) -> None:
    with pytest.raises(
        ModelError, match="there is no model 'gpt-9': neither a file or folder, nor one of smollm2-135m"
    ):
        action("gpt-9")


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("Qwen/Qwen3-4B", Reference("Qwen/Qwen3-4B")),
        ("Qwen/Qwen3-4B@v1.0", Reference("Qwen/Qwen3-4B", "v1.0")),
        ("a/b@refs/pr/1:Q4_K_M", Reference("a/b", "refs/pr/1", "Q4_K_M")),
        ("a/b:sub/x-Q8_0.gguf", Reference("a/b", None, "sub/x-Q8_0.gguf")),
        ("models/mine.gguf", None),
        ("./models/mine", None),
        ("/models/mine", None),
        ("a/b/c", None),
        ("gpt-9", None),
    ],
)
def test_what_a_reference_is(text: str, reference: Reference | None) -> None:
    assert parse_reference(text) == reference
    assert reference is None or str(reference) == text
