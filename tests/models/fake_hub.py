"""A small hub on loopback: the few pages of huggingface.co that `huggingface_hub` asks for, over files in memory.

As there, large files are at another host (`localhost`, where the hub is 127.0.0.1), named by their SHA-256 and served
in ranges; small ones are named by git's SHA-1. It can be told to misbehave, and remembers what it was asked.
"""

import hashlib
import json
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import unquote

LARGE_BYTES = 2000
COMMIT = "c0ffee" + "0" * 34


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    token: str | None
    range: str | None
    user_agent: str | None


@dataclass
class FakeHub:
    """`repos` are files by name, by `org/name@commit`; `refs` say which commit `org/name@branch` is."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    """Repositories whose files need the token `secret`."""
    breaks: dict[str, list[int]] = field(default_factory=dict)
    """After how many bytes an answer with that file breaks off; each number counts once."""
    stalls: set[str] = field(default_factory=set)
    """Files of which half is sent, and then nothing, until `go_on`; `has_stalled` says that it is so far."""
    damaged: set[str] = field(default_factory=set)
    has_ranges: bool = True
    asked: list[Asked] = field(default_factory=list)
    sent_bytes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.has_stalled, self.go_on = threading.Event(), threading.Event()

    def add(self, repo: str, files: dict[str, bytes], commit: str = COMMIT, branch: str = "main") -> None:
        self.repos[f"{repo}@{commit}"] = files
        self.refs[f"{repo}@{branch}"] = commit

    def __enter__(self) -> Self:
        hub = self

        class Handler(FakeHubHandler):
            state = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a client that leaves is none
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def downloaded(self) -> set[str]:
        """Names of files of which anything was sent."""
        return set(self.sent_bytes)


class FakeHubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ") or None
        path = self.path.partition("?")[0]
        headers = self.headers
        self.state.asked.append(Asked(self.command, unquote(path), token, headers["Range"], headers["User-Agent"]))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/(.+))?", path):
            self._list(match[1], unquote(match[2] or "main"))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], unquote(match[2]), unquote(match[3]), token)
        elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+@[0-9a-f]+)/(.+)", path):
            name = unquote(match[2])
            self._send_file(name, self.state.repos[match[1]][name], {})
        else:
            self._fail(404, "EntryNotFound")

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""

    def _commit(self, repo: str, revision: str) -> str | None:
        """Says what is wrong, too."""
        state = self.state
        commit = state.refs.get(f"{repo}@{revision}", revision)
        if f"{repo}@{commit}" in state.repos:
            return commit
        is_known = any(key.startswith(f"{repo}@") for key in state.repos)
        self._fail(404, "RevisionNotFound") if is_known else self._fail(401, "RepoNotFound")
        return None

    def _list(self, repo: str, revision: str) -> None:
        if not (commit := self._commit(repo, revision)):
            return
        siblings = []
        for name, data in self.state.repos[f"{repo}@{commit}"].items():
            sibling = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
            if len(data) > LARGE_BYTES:
                sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(sibling)
        body = {"id": repo, "modelId": repo, "sha": commit, "private": False, "siblings": siblings, "tags": []}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, revision: str, name: str, token: str | None) -> None:
        if not (commit := self._commit(repo, revision)):
            return
        data = self.state.repos[f"{repo}@{commit}"].get(name)
        if repo in self.state.gated and token != "secret":
            self._fail(403, "GatedRepo")
        elif data is None:
            self._fail(404, "EntryNotFound")
        elif len(data) > LARGE_BYTES:
            digest = hashlib.sha256(data).hexdigest()
            location = f"http://localhost:{self.state.port}/cdn/{repo}@{commit}/{name}"
            linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
            self._send(302, b"", {"X-Repo-Commit": commit, "Location": location, **linked})
        else:
            self._send_file(name, data, {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(data)}"'})

    def _send_file(self, name: str, data: bytes, headers: dict[str, str]) -> None:
        state, status, whole = self.state, 200, len(data)
        if name in state.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if match and state.has_ranges:
            begin, end = int(match[1]), min(int(match[2] or whole), whole - 1)
            status, data = 206, data[begin : end + 1]
            headers = {**headers, "Content-Range": f"bytes {begin}-{end}/{whole}"}
        self._send(status, data, headers, name)

    def _send(self, status: int, body: bytes, headers: dict[str, str], name: str = "") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if name and (stops := self.state.breaks.get(name)):
            body = body[: stops.pop(0)]
            self.close_connection = True
        if name in self.state.stalls:
            self.wfile.write(body[: len(body) // 2])
            self.state.has_stalled.set()
            self.state.go_on.wait()
            self.close_connection = True
            return
        if name:
            self.state.sent_bytes[name] += len(body)
        self.wfile.write(body)

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
