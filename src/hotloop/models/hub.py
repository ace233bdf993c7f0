"""Models from a Hugging Face hub: which files of a repository are needed, and how they get into the hub's own cache.

`huggingface_hub` (the extra `hub`) knows the endpoint, the token, offline mode and the layout of its cache, where other
programs find what is fetched here, and the other way round. The bytes are read here: an interrupted download goes on
where it ended, and what arrives is checked against its digest before it gets its name.

    models--org--name/blobs/DIGEST.incomplete ──> blobs/DIGEST <── snapshots/COMMIT/model.safetensors
"""

import errno
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.catalogue import Reference
from hotloop.models.fetch import Progress
from hotloop.models.gguf import check_beginning
from hotloop.models.huggingface import config_spec, read_json

DEFAULT_TAG = "Q4_K_M"
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_SMALL = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja")
_NUM_AT_ONCE = 4
_MAX_FAILURES = 5  # one after the other, without a byte between them
_CHUNK_BYTES, _BEGINNING_BYTES = 1 << 20, 1 << 20
_TIMEOUT_S = 30.0
_MAX_NAMED = 12


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    size_bytes: int
    digest: str
    """SHA-256 of a large file, git's SHA-1 of a small one; the cache calls its blob by it."""

    def matches(self, path: Path) -> bool:
        is_git = len(self.digest) == 40
        digest = hashlib.sha1(b"blob %d\0" % self.size_bytes) if is_git else hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest() == self.digest


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one commit."""

    repo: str
    commit: str
    files: dict[str, HubFile]


@dataclass(slots=True)
class _Tally:
    """Bytes of all files of a download, told to one who waits."""

    total_bytes: int
    progress: Progress
    done_bytes: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, num_bytes: int) -> None:
        if self.is_over.is_set():
            raise CancelledError
        with self.lock:
            self.done_bytes += num_bytes
            self.progress(self.done_bytes, self.total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """One hub and the cache on this machine."""

    endpoint: str
    cache: Path
    is_offline: bool = False
    token: str | None = None
    """The one `huggingface_hub` knows (HF_TOKEN, or a login) if not given."""
    backoff_s: float = 0.5

    @classmethod
    def of_environment(cls) -> "Hub":
        """As HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME or HF_HUB_CACHE say."""
        constants = _import_hub().constants
        return cls(endpoint=constants.ENDPOINT, cache=Path(constants.HF_HUB_CACHE), is_offline=constants.HF_HUB_OFFLINE)

    def pull(self, reference: Reference, progress: Progress) -> tuple[Path, str]:
        """The model's folder or GGUF file in the cache, and the commit. What cannot be run is refused before it is
        downloaded.
        """
        with self._one_line_errors(reference):
            if self.is_offline:
                return self._find_cached(reference)
            listing = self.list_files(reference)
            folder = self.folder(reference.repo) / "snapshots" / listing.commit
            if name := choose_gguf(reference, listing.files):
                file = listing.files[name]
                if not (folder / name).exists():
                    check_beginning(Path(f"{reference.repo}:{name}"), self._read_beginning(listing, file))
                self.fetch(listing, [file], progress)
                path = folder / name
            else:
                self._fetch_folder(listing, folder, progress)
                path = folder
            if reference.revision != listing.commit:  # for other programs, when they are offline
                ref = self.folder(reference.repo) / "refs" / (reference.revision or "main")
                ref.parent.mkdir(parents=True, exist_ok=True)
                ref.write_text(listing.commit)
            return path, listing.commit

    def folder(self, repo: str) -> Path:
        return self.cache / f"models--{repo.replace('/', '--')}"

    def list_files(self, reference: Reference) -> Listing:
        api = _import_hub().HfApi(endpoint=self.endpoint, token=self.token)
        info = api.model_info(reference.repo, revision=reference.revision, files_metadata=True, timeout=_TIMEOUT_S)
        files = {}
        for each in info.siblings or []:
            digest = each.lfs.sha256 if each.lfs else each.blob_id
            if digest and each.size is not None:
                files[each.rfilename] = HubFile(each.rfilename, each.size, digest)
        if not info.sha or not files:
            raise ModelError(f"{reference} has no files at {self.endpoint}")
        return Listing(reference.repo, info.sha, files)

    def fetch(self, listing: Listing, files: Sequence[HubFile], progress: Progress) -> None:
        """Get those files that the cache does not have, some at a time. An interrupt ends all, and they go on later."""
        snapshot = self.folder(listing.repo) / "snapshots" / listing.commit
        missing = [file for file in files if not (snapshot / file.name).exists()]
        if not missing:
            return
        self._check_room(listing, missing)
        tally = _Tally(sum(file.size_bytes for file in missing), progress)
        with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
            running = [pool.submit(self._fetch_one, listing, file, tally) for file in missing]
            try:
                for future in as_completed(running):
                    future.result()
            finally:
                tally.is_over.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _fetch_folder(self, listing: Listing, folder: Path, progress: Progress) -> None:
        """The small files first, since they say whether the large ones are of use."""
        files = listing.files
        if missing := [name for name in ("config.json", "tokenizer.json") if name not in files]:
            raise ModelError(f"{listing.repo} has no {missing[0]}, which is needed")
        self.fetch(listing, [files["config.json"]], _say_nothing)
        config_spec(folder)
        self.fetch(listing, [files[name] for name in (*_SMALL, _INDEX) if name in files], _say_nothing)
        shards = {_SINGLE}
        if _INDEX in files:
            weight_map = read_json(folder / _INDEX).get("weight_map")
            shards = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
        if not shards or not shards <= files.keys():
            absent = min(shards - files.keys(), default=_SINGLE)
            raise ModelError(f"{listing.repo} has no {absent}: its weights must be in safetensors or GGUF files")
        self.fetch(listing, [files[name] for name in sorted(shards)], progress)

    def _fetch_one(self, listing: Listing, file: HubFile, tally: _Tally) -> None:
        hub = _import_hub()
        folder = self.folder(listing.repo)
        blob = folder / "blobs" / file.digest
        lock = self.cache / ".locks" / folder.name / f"{file.digest}.lock"
        for path in (blob, lock):
            path.parent.mkdir(parents=True, exist_ok=True)
        with hub.utils.WeakFileLock(lock):
            if blob.exists():
                tally.add(file.size_bytes)
            else:
                self._fetch_blob(listing, file, blob, tally)
        hub.hf_hub_download(
            listing.repo,
            file.name,
            revision=listing.commit,
            cache_dir=self.cache,
            endpoint=self.endpoint,
            token=self.token,
        )

    def _fetch_blob(self, listing: Listing, file: HubFile, blob: Path, tally: _Tally) -> None:
        partial = blob.with_name(f"{blob.name}.incomplete")
        with partial.open("ab") as output:
            if output.tell() > file.size_bytes:
                _empty(output)
            tally.add(output.tell())
            self._retry(lambda: self._append(listing, file, output, tally), output.tell)
        if not file.matches(partial):
            partial.unlink()
            wrong = f"its digest is not {file.digest}"
            raise ModelError(f"{listing.repo}: {file.name} arrived damaged and was removed, {wrong}: try again")
        os.replace(partial, blob)

    def _append(self, listing: Listing, file: HubFile, output: BinaryIO, tally: _Tally) -> None:
        """Read what is lacking. A server may answer with the whole file instead."""
        begin = output.tell()
        if begin == file.size_bytes:
            return
        with self._get(listing, file, f"bytes={begin}-") as response:
            if begin and response.status_code == 200:
                _empty(output)
                tally.add(-begin)
            for chunk in response.iter_bytes():
                output.write(chunk)
                tally.add(len(chunk))
        if (num_bytes := output.tell()) < file.size_bytes:
            missing = f"only {num_bytes} of its {file.size_bytes} bytes arrived"
            raise ModelError(f"{listing.repo}: {file.name} was cut off, {missing}: try again")

    def _read_beginning(self, listing: Listing, file: HubFile) -> bytes:
        data = bytearray()

        def read() -> None:
            data.clear()
            with self._get(listing, file, f"bytes=0-{_BEGINNING_BYTES - 1}") as response:
                for chunk in response.iter_bytes():
                    data.extend(chunk)
                    if len(data) >= _BEGINNING_BYTES:
                        break

        self._retry(read, lambda: 0)
        return bytes(data)

    @contextmanager
    def _get(self, listing: Listing, file: HubFile, byte_range: str) -> Iterator[Any]:
        hub = _import_hub()
        url = hub.hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=self.endpoint)
        # Compressed bytes could not be counted.
        headers = hub.utils.build_hf_headers(token=self.token)
        headers |= {"Range": byte_range, "Accept-Encoding": "identity"}
        with hub.get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as response:
            hub.utils.hf_raise_for_status(response)
            yield response

    def _retry(self, act: Callable[[], None], num_done: Callable[[], int]) -> None:
        """Again after a failure that may pass, as long as something arrives between two of them."""
        transport_error = _import_hub().errors.HfHubHTTPError.__bases__[0]  # of the HTTP library it uses
        num_failures, before = 0, num_done()
        while True:
            try:
                return act()
            except transport_error as error:
                status = getattr(getattr(error, "response", None), "status_code", 500)
                num_failures = num_failures + 1 if num_done() == before else 1
                before = num_done()
                if (status < 500 and status not in (408, 429)) or num_failures >= _MAX_FAILURES:
                    raise
            time.sleep(self.backoff_s * 2 ** (num_failures - 1))

    def _check_room(self, listing: Listing, files: Iterable[HubFile]) -> None:
        blobs = self.folder(listing.repo) / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        need_bytes = 0
        for file in files:
            with suppress(FileNotFoundError):
                need_bytes -= (blobs / f"{file.digest}.incomplete").stat().st_size
            need_bytes += 0 if (blobs / file.digest).exists() else file.size_bytes
        free_bytes = shutil.disk_usage(blobs).free
        if need_bytes > free_bytes:
            need, free = (f"{num_bytes / 1e9:.1f} GB" for num_bytes in (need_bytes, free_bytes))
            raise ModelError(f"{listing.repo} takes another {need}, and {self.cache} has only {free} free")

    def _find_cached(self, reference: Reference) -> tuple[Path, str]:
        """What an earlier download left, ours or another program's."""
        folder, revision = self.folder(reference.repo), reference.revision or "main"
        ref = folder / "refs" / revision
        commit = ref.read_text().strip() if ref.is_file() else revision
        snapshot = folder / "snapshots" / commit
        if not snapshot.is_dir():
            raise ModelError(f"{reference} is not in {self.cache}, and HF_HUB_OFFLINE forbids to download it")
        names = [str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if not path.is_dir()]
        name = choose_gguf(reference, names)
        return (snapshot / name if name else snapshot), commit

    @contextmanager
    def _one_line_errors(self, reference: Reference) -> Iterator[None]:
        """In our words: what was asked for, and what helps."""
        errors = _import_hub().errors
        transport_error = errors.HfHubHTTPError.__bases__[0]
        kept = "what has arrived is kept, and the next pull goes on from there"
        try:
            yield
        except errors.GatedRepoError:
            page = f"{self.endpoint}/{reference.repo}"
            raise ModelError(f"{reference} is gated: accept its terms at {page} and set HF_TOKEN") from None
        except errors.RepositoryNotFoundError:
            where = f"at {self.endpoint}, nor a file or folder of that name here"
            raise ModelError(f"there is no model {reference} {where} (a private one needs HF_TOKEN)") from None
        except errors.RevisionNotFoundError:
            raise ModelError(f"{reference.repo} has no revision {reference.revision}") from None
        except errors.HFValidationError as error:
            raise ModelError(f"{reference} is no name of a model: {_first_line(error)}") from None
        except transport_error as error:
            raise ModelError(f"{reference} could not be downloaded: {_first_line(error)}; {kept}") from None
        except OSError as error:
            reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or _first_line(error)
            raise ModelError(f"{reference} could not be written to {self.cache}: {reason}; {kept}") from None


def _say_nothing(done_bytes: int, total_bytes: int) -> None:
    """The progress of what is small."""


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


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
        raise ModelError(f"{reference.repo}: {found[0]} is one shard of several, which cannot be read: take another")
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


def _import_hub() -> Any:
    """The extra, with those of its parts that it does not load by itself."""
    try:
        import huggingface_hub  # noqa: PLC0415 - an extra, and half a second
        from huggingface_hub import constants, errors, utils  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError("models from a hub need the extra `hub`: pip install 'hotloop[hub]'") from None
    return huggingface_hub
