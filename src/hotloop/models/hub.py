"""Models from a Hugging Face hub: which files of a repository are needed, and what is refused before it is fetched."""

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hotloop.core.errors import ModelError
from hotloop.models.catalogue import Reference
from hotloop.models.fetch import Progress
from hotloop.models.gguf_model import check_beginning
from hotloop.models.hub_client import Hub, Listing, import_hub, transport_error
from hotloop.models.huggingface import config_spec, read_json

DEFAULT_TAG = "Q4_K_M"
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_SMALL = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja")
_MAX_NAMED = 12


def pull_from_hub(hub: Hub, reference: Reference, progress: Progress) -> tuple[Path, str]:
    """The model's folder or GGUF file in the cache, and the commit. What cannot be run is refused before it is
    downloaded.
    """
    with _one_line_errors(hub, reference):
        if hub.is_offline:
            return _find_cached(hub, reference)
        listing = hub.list_files(reference)
        folder = hub.folder(reference.repo) / "snapshots" / listing.commit
        if name := choose_gguf(reference, listing.files):
            file = listing.files[name]
            if not (folder / name).exists():
                check_beginning(Path(f"{reference.repo}:{name}"), hub.read_beginning(listing, file))
            hub.fetch(listing, [file], progress)
            path = folder / name
        else:
            _fetch_folder(hub, listing, folder, progress)
            path = folder
        _write_ref(hub, reference, listing.commit)
        return path, listing.commit


def fetch_config(hub: Hub, reference: Reference, *, has_tokenizer: bool = False) -> Path:
    """A folder with the config.json of a repository, with its tokenizer and template if they are wanted; no weights."""
    with _one_line_errors(hub, reference):
        if hub.is_offline:
            return _find_cached(hub, reference)[0]
        listing = hub.list_files(reference)
        if "config.json" not in listing.files:
            raise ModelError(f"{reference.repo} has no config.json, which is needed")
        names = _SMALL if has_tokenizer else _SMALL[:1]
        hub.fetch(listing, [listing.files[name] for name in names if name in listing.files], _say_nothing)
        _write_ref(hub, reference, listing.commit)
        return hub.folder(reference.repo) / "snapshots" / listing.commit


def _fetch_folder(hub: Hub, listing: Listing, folder: Path, progress: Progress) -> None:
    """The small files first, since they say whether the large ones are of use."""
    files = listing.files
    if missing := [name for name in ("config.json", "tokenizer.json") if name not in files]:
        raise ModelError(f"{listing.repo} has no {missing[0]}, which is needed")
    hub.fetch(listing, [files["config.json"]], _say_nothing)
    config_spec(folder)
    hub.fetch(listing, [files[name] for name in (*_SMALL, _INDEX) if name in files], _say_nothing)
    shards = {_SINGLE}
    if _INDEX in files:
        weight_map = read_json(folder / _INDEX).get("weight_map")
        shards = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
    if not shards or not shards <= files.keys():
        absent = min(shards - files.keys(), default=_SINGLE)
        raise ModelError(f"{listing.repo} has no {absent}: its weights must be in safetensors or GGUF files")
    hub.fetch(listing, [files[name] for name in sorted(shards)], progress)


def _write_ref(hub: Hub, reference: Reference, commit: str) -> None:
    """Which commit a branch or tag was, for those who look offline."""
    if reference.revision != commit:
        ref = hub.folder(reference.repo) / "refs" / (reference.revision or "main")
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)


def _find_cached(hub: Hub, reference: Reference) -> tuple[Path, str]:
    """What an earlier download left, ours or another program's."""
    folder, revision = hub.folder(reference.repo), reference.revision or "main"
    ref = folder / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit
    if not snapshot.is_dir():
        raise ModelError(f"{reference} is not in {hub.cache}, and HF_HUB_OFFLINE is set")
    names = [str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if not path.is_dir()]
    name = choose_gguf(reference, names)
    return (snapshot / name if name else snapshot), commit


@contextmanager
def _one_line_errors(hub: Hub, reference: Reference) -> Iterator[None]:
    """In our words: what was asked for, and what helps."""
    errors = import_hub().errors
    kept = "what has arrived is kept, and the next pull goes on from there"
    try:
        yield
    except errors.GatedRepoError:
        page = f"{hub.endpoint}/{reference.repo}"
        raise ModelError(f"{reference} is gated: accept its terms at {page} and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        where = f"at {hub.endpoint}, nor a file or folder of that name here"
        raise ModelError(f"there is no model {reference} {where} (a private one needs HF_TOKEN)") from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{reference.repo} has no revision {reference.revision}") from None
    except errors.HFValidationError as error:
        raise ModelError(f"{reference} is not a model's name: {_first_line(error)}") from None
    except (transport_error(), errors.LocalEntryNotFoundError) as error:
        where = f"from {hub.endpoint}, and no file or folder here has that name"
        raise ModelError(f"{reference} could not be downloaded {where}: {_first_line(error)}; {kept}") from None
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or _first_line(error)
        raise ModelError(f"{reference} could not be written to {hub.cache}: {reason}; {kept}") from None


def choose_gguf(reference: Reference, names: Iterable[str]) -> str | None:
    """The one GGUF file that is meant; None if safetensors are. A tag is a part of a file's name, in any case.

    Without either it is safetensors where there are any, else Q4_K_M, as elsewhere, or the only file.
    """
    names = sorted(names, key=lambda name: (len(name), name))
    if not reference.file and any(name in (_SINGLE, _INDEX) for name in names):
        return None
    files = [name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower()]
    wanted = reference.file or DEFAULT_TAG
    if wanted.endswith(".gguf"):
        found = [name for name in files if name == wanted or Path(name).name == wanted]
    else:
        tag = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9_])", re.IGNORECASE)
        found = [name for name in files if tag.search(name)]
    if not reference.file and not found:
        if not files:
            return None
        found = files if len(files) == 1 else []
    if not found:
        there = ", ".join(files[:_MAX_NAMED]) + (", ..." if len(files) > _MAX_NAMED else "")
        raise ModelError(f"{reference.repo} has no GGUF file {wanted}; it has {there or 'none'}")
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", found[0]):
        raise ModelError(
            f"{reference.repo}: {found[0]} is one of several shards, which is not supported: choose another file"
        )
    return found[0]


def remove_cached(path: Path) -> int:
    """Delete a snapshot, or one file of it, from the cache; the bytes this frees. What other snapshots share stays."""
    snapshots = next(parent for parent in path.parents if parent.name == "snapshots")
    files = [path] if not path.is_dir() else [each for each in path.rglob("*") if not each.is_dir()]
    freed_bytes = 0
    for file in files:
        blob = file.parent / os.readlink(file) if file.is_symlink() else None
        size_bytes = file.stat().st_size if file.exists() else 0
        file.unlink()
        if blob is None:
            freed_bytes += size_bytes
        elif not any(each.is_symlink() and Path(os.readlink(each)).name == blob.name for each in snapshots.rglob("*")):
            blob.unlink(missing_ok=True)
            freed_bytes += size_bytes
    if not any(not each.is_dir() for each in snapshots.rglob("*")):
        shutil.rmtree(snapshots.parent, ignore_errors=True)
    return freed_bytes


def _say_nothing(done_bytes: int, total_bytes: int) -> None:
    """The progress of what is small."""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
