"""A Hugging Face hub and the cache of its files on this machine.

`huggingface_hub` (the extra `hub`) knows the endpoint, the token, offline mode and the layout of its cache, where other
programs find what is fetched here, and the other way round. The bytes are read here: an interrupted download goes on
where it ended, and what arrives is checked against its digest before it gets its name.

    models--org--name/blobs/DIGEST.incomplete ──> blobs/DIGEST <── snapshots/COMMIT/model.safetensors
"""

import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hotloop.core.errors import ConfigError, ModelError
from hotloop.models.catalogue import Reference
from hotloop.models.fetch import Progress

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NUM_AT_ONCE = 4
_MAX_FAILURES = 5  # one after the other, without a byte between them
_CHUNK_BYTES, _BEGINNING_BYTES = 1 << 20, 1 << 20
_TIMEOUT_S = 30.0
_LEAVE_S = 1.0  # to let threads see that an interrupt ended it all


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
        constants = import_hub().constants
        return cls(endpoint=constants.ENDPOINT, cache=Path(constants.HF_HUB_CACHE), is_offline=constants.HF_HUB_OFFLINE)

    def folder(self, repo: str) -> Path:
        return self.cache / f"models--{repo.replace('/', '--')}"

    def list_files(self, reference: Reference) -> Listing:
        api = import_hub().HfApi(endpoint=self.endpoint, token=self.token)
        info = api.model_info(reference.repo, revision=reference.revision, files_metadata=True, timeout=_TIMEOUT_S)
        files = {}
        for each in info.siblings or []:
            name, digest = each.rfilename, (each.lfs.sha256 if each.lfs else each.blob_id) or ""
            # Both become paths here.
            if _DIGEST.fullmatch(digest) and ".." not in Path(name).parts and each.size is not None:
                files[name] = HubFile(name, each.size, digest)
        if not files or not _DIGEST.fullmatch(info.sha or ""):
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
        futures = [Future[None]() for _ in missing]
        pending = list(zip(missing, futures, strict=True))

        def work() -> None:
            while pending and not tally.is_over.is_set():
                with suppress(IndexError):  # another thread has taken the last
                    file, future = pending.pop(0)
                    try:
                        self._fetch_one(listing, file, tally)
                        future.set_result(None)
                    except BaseException as error:  # as an executor does
                        future.set_exception(error)

        # An executor's threads would have to be waited for, and one may read from a connection that stands still.
        threads = [threading.Thread(target=work, daemon=True) for _ in missing[:_NUM_AT_ONCE]]
        for thread in threads:
            thread.start()
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            tally.is_over.set()
            for thread in threads:
                thread.join(_LEAVE_S / len(threads))

    def _fetch_one(self, listing: Listing, file: HubFile, tally: _Tally) -> None:
        hub = import_hub()
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
                output.flush()
                tally.add(len(chunk))
        if (num_bytes := output.tell()) < file.size_bytes:
            missing = f"only {num_bytes} of its {file.size_bytes} bytes arrived"
            raise ModelError(f"{listing.repo}: {file.name} was cut off, {missing}: try again")

    def read_beginning(self, listing: Listing, file: HubFile) -> bytes:
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
        hub = import_hub()
        url = hub.hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=self.endpoint)
        # Compressed bytes could not be counted.
        headers = hub.utils.build_hf_headers(token=self.token)
        headers |= {"Range": byte_range, "Accept-Encoding": "identity"}
        with hub.get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as response:
            hub.utils.hf_raise_for_status(response)
            yield response

    def _retry(self, act: Callable[[], None], num_done: Callable[[], int]) -> None:
        """Again after a failure that may pass, as long as something arrives between two of them."""
        num_failures, before = 0, num_done()
        while True:
            try:
                return act()
            except transport_error() as error:
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


def import_hub() -> Any:
    """The extra, with those of its parts that it does not load by itself, and without its telemetry: it would tell the
    hub which libraries are installed and which coding agent started this.
    """
    try:
        import huggingface_hub  # noqa: PLC0415 - an extra, and half a second
        from huggingface_hub import constants, errors, utils  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError("models from a hub need the extra `hub`: pip install 'hotloop[hub]'") from None
    constants.HF_HUB_DISABLE_TELEMETRY = True  # what HF_HUB_DISABLE_TELEMETRY=1 sets, and read with every request
    return huggingface_hub


def transport_error() -> type[Exception]:
    """What the HTTP library that `huggingface_hub` uses, one or another, raises."""
    base: type[Exception] = import_hub().errors.HfHubHTTPError.__bases__[0]
    return base


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()
