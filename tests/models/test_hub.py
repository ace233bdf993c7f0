"""Models from a hub on loopback: what is downloaded, what is kept, and what goes wrong."""

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
from safetensors.numpy import load_file, save_file
from tests.models.fake_hub import COMMIT, FakeHub
from tests.models.tiny import tiny_spec, tiny_weights, write_folder, write_gguf, write_json

from hotloop.core.errors import ModelError
from hotloop.models.catalogue import Reference, list_models, needs_pull
from hotloop.models.hub import choose_gguf, pull_from_hub
from hotloop.models.hub_client import Hub
from hotloop.models.model import load_model, load_spec, pull, remove

SPEC = tiny_spec("qwen2", num_layers=1)
TINY, GGUF = "org/tiny-qwen", "org/tiny-GGUF"
NEWER = "beef" * 10


@pytest.fixture(scope="module")
def folder_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """In two shards, beside what nobody needs."""
    folder = write_folder(tmp_path_factory.mktemp("made") / "m", SPEC, tiny_weights(SPEC))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, folder / shard)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    extra = {"README.md": b"# tiny", "pytorch_model.bin": bytes(9000), "consolidated.safetensors": bytes(9000)}
    return {path.name: path.read_bytes() for path in folder.iterdir()} | extra


@pytest.fixture(scope="module")
def gguf_data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("made") / "m.gguf", SPEC, tiny_weights(SPEC)).read_bytes()


@pytest.fixture
def server(folder_files: dict[str, bytes], gguf_data: bytes) -> Iterator[FakeHub]:
    fake = FakeHub()
    fake.add(TINY, folder_files)
    fake.add(GGUF, {f"tiny-{tag}.gguf": gguf_data for tag in ("Q4_K_M", "Q4_K_S", "Q8_0")} | {"README.md": b"#"})
    with fake:
        yield fake


@pytest.fixture
def hub(server: FakeHub, empty_home: Path, tmp_path: Path) -> Hub:
    return hub_of(server, tmp_path)


def hub_of(server: FakeHub, tmp_path: Path, *, is_offline: bool = False, token: str | None = None) -> Hub:
    return Hub(endpoint=server.url, cache=tmp_path / "cache", is_offline=is_offline, token=token, backoff_s=0.01)


def download_elsewhere(server: FakeHub, hub: Hub, repo: str) -> None:
    """As other programs do it."""
    for name in server.repos[f"{repo}@{COMMIT}"]:
        hf_hub_download(repo, name, cache_dir=hub.cache, endpoint=server.url)


def shards(files: dict[str, bytes]) -> list[str]:
    return sorted(name for name in files if name.startswith("model-"))


def incomplete(hub: Hub) -> list[Path]:
    return list(hub.cache.rglob("*.incomplete"))


def test_a_folder_is_pulled_without_what_it_does_not_need(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    seen: list[tuple[int, int]] = []
    entry = pull(TINY, lambda done, total: seen.append((done, total)), hub=hub)
    assert (entry.name, entry.kind, entry.family, entry.commit) == (TINY, "huggingface", "qwen2", COMMIT)
    assert server.downloaded() == folder_files.keys() - {"README.md", "pytorch_model.bin", "consolidated.safetensors"}
    total = sum(len(folder_files[name]) for name in shards(folder_files))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert load_model(TINY).name == TINY
    assert load_model(TINY).spec == SPEC
    assert not incomplete(hub)


def test_the_cache_is_as_huggingface_hub_has_it(server: FakeHub, hub: Hub):
    entry = pull(TINY, hub=hub)
    found = try_to_load_from_cache(TINY, "config.json", cache_dir=hub.cache)
    assert found == str(entry.path / "config.json")
    num_asked = len(server.asked)
    folder = snapshot_download(
        TINY, cache_dir=hub.cache, endpoint=server.url, allow_patterns=["*.json", "model*"], local_files_only=True
    )
    assert Path(folder) == entry.path
    assert len(server.asked) == num_asked


def test_what_another_program_has_downloaded_is_not_downloaded_again(server: FakeHub, hub: Hub):
    download_elsewhere(server, hub, TINY)
    sent = dict(server.sent_bytes)
    pull(TINY, hub=hub)
    assert dict(server.sent_bytes) == sent


def test_a_pulled_model_needs_no_hub(server: FakeHub, hub: Hub):
    assert needs_pull(TINY)
    pull(TINY, hub=hub)
    server.repos.clear()
    assert not needs_pull(TINY)
    assert load_model(TINY).spec == SPEC


def test_a_second_pull_takes_the_newer_commit_and_only_what_changed(
    server: FakeHub, hub: Hub, folder_files: dict[str, bytes]
):
    pull(TINY, hub=hub)
    server.add(TINY, {**folder_files, "generation_config.json": b"{}"}, commit=NEWER)
    server.sent_bytes.clear()
    assert pull(TINY, hub=hub).commit == NEWER
    assert server.downloaded() == {"generation_config.json"}
    assert [entry.name for entry in list_models()[1:]] == [TINY]


def test_a_revision_is_pinned(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    server.add(TINY, folder_files, commit=NEWER)
    assert pull(f"{TINY}@{COMMIT}", hub=hub).commit == COMMIT
    server.add(TINY, folder_files, commit="a" * 40, branch="refs/pr/1")
    assert pull(f"{TINY}@refs/pr/1", hub=hub).commit == "a" * 40
    with pytest.raises(ModelError, match="org/tiny-qwen has no revision v9"):
        pull(f"{TINY}@v9", hub=hub)


def test_an_interrupted_download_goes_on(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    name = shards(folder_files)[0]
    total = len(folder_files[name])
    partial = hub.folder(TINY) / "blobs" / f"{hashlib.sha256(folder_files[name]).hexdigest()}.incomplete"

    def interrupt(done: int, total: int) -> None:
        if partial.exists() and partial.stat().st_size == 3500:  # whichever shard came first
            raise KeyboardInterrupt

    server.breaks[name] = [3500]
    with pytest.raises(KeyboardInterrupt):
        pull(TINY, interrupt, hub=hub)
    assert not list_models()[1:]
    assert partial.stat().st_size == 3500
    server.sent_bytes.clear()
    pull(TINY, hub=hub)
    assert server.sent_bytes[name] == total - 3500
    assert not partial.exists()
    assert load_model(TINY).spec == SPEC


def test_a_connection_that_breaks_is_made_again(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    name = shards(folder_files)[0]
    server.breaks[name] = [1000, 0, 0, 5000]
    pull(TINY, hub=hub)
    assert server.sent_bytes[name] == len(folder_files[name])
    ranges = [asked.range for asked in server.asked if asked.path.endswith(name) and asked.path.startswith("/cdn")]
    assert ranges == ["bytes=0-", "bytes=1000-", "bytes=1000-", "bytes=1000-", "bytes=6000-"]


def test_one_that_keeps_breaking_is_given_up_and_kept(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    name = shards(folder_files)[0]
    server.breaks[name] = [1000] + [0] * 9
    with pytest.raises(ModelError, match=r"tiny-qwen could not be downloaded from .* the next pull goes on"):
        pull(TINY, hub=hub)
    assert 1000 in [path.stat().st_size for path in incomplete(hub)]
    assert not list_models()[1:]


def test_a_server_without_ranges_is_read_from_the_beginning(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    server.has_ranges = False
    server.breaks[shards(folder_files)[0]] = [1000]
    seen: list[int] = []
    pull(TINY, lambda done, total: seen.append(done), hub=hub)
    assert seen[-1] == sum(len(folder_files[name]) for name in shards(folder_files))


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_file_is_refused_and_removed(server: FakeHub, hub: Hub, name: str):
    server.damaged.add(name)
    with pytest.raises(ModelError, match=f"org/tiny-qwen: {name} arrived damaged and was removed"):
        pull(TINY, hub=hub)
    assert not list_models()[1:]
    server.damaged.clear()
    pull(TINY, hub=hub)
    assert not incomplete(hub)


def test_a_full_disk_is_one_line(server: FakeHub, hub: Hub):
    def full(done: int, total: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ModelError, match=r"could not be written to .*: the disk is full; what has arrived is kept"):
        pull(TINY, full, hub=hub)
    pull(TINY, hub=hub)


def test_a_disk_that_is_too_small_is_said_before(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    listing = hub.list_files(Reference(TINY))
    huge = [type(file)(file.name, 1 << 60, file.digest) for file in listing.files.values()]
    with pytest.raises(ModelError, match=r"org/tiny-qwen takes another .* GB, and .* has only .* GB free"):
        hub.fetch(listing, huge, lambda done, total: None)
    assert not server.downloaded()


def test_an_architecture_that_cannot_be_run_is_refused_first(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    server.add("org/other", {**folder_files, "config.json": b'{"model_type": "mamba7"}'})
    with pytest.raises(ModelError, match="the architecture 'mamba7' is not supported"):
        pull("org/other", hub=hub)
    assert server.downloaded() == {"config.json"}


def test_a_shape_needs_config_json_alone(server: FakeHub, hub: Hub, tmp_path: Path):
    assert load_spec(TINY, hub=hub) == (TINY, SPEC)
    assert server.downloaded() == {"config.json"}
    assert load_spec(TINY, hub=hub_of(server, tmp_path, is_offline=True)) == (TINY, SPEC)
    with pytest.raises(ModelError, match=r"org/tiny-GGUF has no config\.json"):
        load_spec(GGUF, hub=hub)


def test_dummy_weights_are_not_downloaded(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    loaded = load_model(TINY, "dummy", hub=hub)
    assert (loaded.name, loaded.spec) == (TINY, SPEC)
    assert loaded.template is not None
    assert server.downloaded() == {"config.json", "tokenizer.json", "tokenizer_config.json"}


def test_a_hub_cannot_name_paths_outside_its_cache(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    server.add("org/evil", {**folder_files, "../../../outside.gguf": b"GGUF"})
    assert hub.list_files(Reference("org/evil")).files.keys() == folder_files.keys()


def test_a_gguf_that_cannot_be_run_is_refused_after_its_beginning(server: FakeHub, hub: Hub, tmp_path: Path):
    data = write_gguf(tmp_path / "x.gguf", SPEC, tiny_weights(SPEC), arch="mamba7").read_bytes() + bytes(4 << 20)
    server.add("org/other", {"x.gguf": data})
    with pytest.raises(ModelError, match="the architecture 'mamba7' is not supported"):
        pull("org/other", hub=hub)
    assert server.sent_bytes["x.gguf"] == 1 << 20
    server.add("org/none", {"x.gguf": b"<html>" * 1000})
    with pytest.raises(ModelError, match=r"org/none:x.gguf is not a GGUF file"):
        pull("org/none", hub=hub)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model-00002-of-00002.safetensors"])
def test_a_repository_without_what_is_needed_says_so(
    server: FakeHub, hub: Hub, folder_files: dict[str, bytes], missing: str
):
    server.add("org/part", {name: data for name, data in folder_files.items() if name != missing})
    with pytest.raises(ModelError, match=f"org/part has no {missing}"):
        pull("org/part", hub=hub)
    assert not server.downloaded() & set(shards(folder_files))


def test_weights_in_other_formats_are_refused(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    old = {name: data for name, data in folder_files.items() if not name.startswith("model")}
    server.add("org/old", old)
    with pytest.raises(
        ModelError, match=r"org/old has no model.safetensors: its weights must be in safetensors or GGUF"
    ):
        pull("org/old", hub=hub)


def test_one_gguf_file_of_many(server: FakeHub, hub: Hub):
    entry = pull(f"{GGUF}:q8_0", hub=hub)
    assert (entry.name, entry.kind, entry.path.name) == (f"{GGUF}:q8_0", "gguf", "tiny-Q8_0.gguf")
    assert server.downloaded() == {"tiny-Q8_0.gguf"}
    assert load_model(f"{GGUF}:q8_0").spec.family == "qwen2"
    assert pull(f"{GGUF}:tiny-Q4_K_S.gguf", hub=hub).path.name == "tiny-Q4_K_S.gguf"
    assert pull(GGUF, hub=hub).path.name == "tiny-Q4_K_M.gguf"
    with pytest.raises(
        ModelError, match=r"org/tiny-GGUF has no GGUF file Q2_K; it has tiny-Q8_0.gguf, tiny-Q4_K_M.gguf"
    ):
        pull(f"{GGUF}:Q2_K", hub=hub)


def test_gated_missing_and_unreachable(server: FakeHub, hub: Hub, tmp_path: Path, empty_home: Path):
    server.gated.add(TINY)
    with pytest.raises(ModelError, match=f"{TINY} is gated: accept its terms at {server.url}/{TINY} and set HF_TOKEN"):
        pull(TINY, hub=hub)
    with pytest.raises(ModelError, match=f"there is no model org/none at {server.url}, nor a file or folder"):
        pull("org/none", hub=hub)
    with pytest.raises(ModelError, match=r"org/a..b is not a model's name"):
        pull("org/a..b", hub=hub)
    nowhere = Hub(endpoint="http://127.0.0.1:9", cache=tmp_path / "cache", backoff_s=0.01)
    with pytest.raises(ModelError, match=r"org/none could not be downloaded from .*refused"):
        pull("org/none", hub=nowhere)
    pull(TINY, hub=hub_of(server, tmp_path, token="secret"))
    sent_away = [asked.token for asked in server.asked if asked.path.startswith("/cdn")]
    assert sent_away
    assert not any(sent_away), "the token is for the hub alone"


def test_offline_takes_what_the_cache_has(server: FakeHub, hub: Hub, tmp_path: Path):
    offline = hub_of(server, tmp_path, is_offline=True)
    with pytest.raises(ModelError, match=r"org/tiny-qwen is not in .*cache, and HF_HUB_OFFLINE is set"):
        pull(TINY, hub=offline)
    for repo in (TINY, GGUF):
        download_elsewhere(server, hub, repo)
    num_asked = len(server.asked)
    assert pull(TINY, hub=offline).commit == COMMIT
    assert pull(f"{TINY}@{COMMIT}", hub=offline).commit == COMMIT
    assert pull(f"{GGUF}:Q8_0", hub=offline).path.name == "tiny-Q8_0.gguf"
    assert len(server.asked) == num_asked


def test_two_at_once_download_once(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    threads = [
        threading.Thread(target=pull_from_hub, args=(hub, Reference(TINY), lambda done, total: None)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: server.sent_bytes[name] for name in shards(folder_files)} == {
        name: len(folder_files[name]) for name in shards(folder_files)
    }


def test_removing_frees_what_no_other_snapshot_has(server: FakeHub, hub: Hub, folder_files: dict[str, bytes]):
    pull(f"{TINY}@{COMMIT}", hub=hub)
    server.add(TINY, {**folder_files, "generation_config.json": b"{}"}, commit=NEWER)
    pull(TINY, hub=hub)
    _, freed_bytes = remove(f"{TINY}@{COMMIT}")
    assert freed_bytes == 0
    assert load_model(TINY).spec == SPEC
    remove(TINY)
    assert not list_models()[1:]
    assert not hub.folder(TINY).exists()


def test_two_names_of_one_snapshot_are_removed_one_by_one(server: FakeHub, hub: Hub):
    pull(TINY, hub=hub)
    pull(f"{TINY}@{COMMIT}", hub=hub)
    assert remove(TINY)[1] == 0
    assert load_model(f"{TINY}@{COMMIT}").spec == SPEC
    assert remove(f"{TINY}@{COMMIT}")[1] > 0


def test_one_gguf_file_is_removed_and_its_neighbour_stays(server: FakeHub, hub: Hub, tmp_path: Path, gguf_data: bytes):
    server.add(GGUF, {"a-Q8_0.gguf": gguf_data, "b-Q4_0.gguf": gguf_data + bytes(64)})
    pull(f"{GGUF}:Q8_0", hub=hub)
    pull(f"{GGUF}:Q4_0", hub=hub)
    assert remove(f"{GGUF}:Q8_0")[1] == len(gguf_data)
    assert load_model(f"{GGUF}:Q4_0").spec.family == "qwen2"


def test_a_users_own_file_is_only_forgotten(empty_home: Path, tmp_path: Path):
    path = write_gguf(tmp_path / "mine.gguf", SPEC, tiny_weights(SPEC))
    pull(str(path))
    assert remove("mine")[1] == 0
    assert path.exists()
    assert not list_models()[1:]
    with pytest.raises(ModelError, match=r"unknown model .*mine\.gguf"):
        remove(str(path))


@pytest.mark.parametrize(
    ("file", "names", "chosen"),
    [
        (None, ["model.safetensors", "x-Q4_K_M.gguf"], None),
        (None, ["pytorch_model.bin"], None),
        (None, ["x-F16.gguf", "mmproj-x-F16.gguf"], "x-F16.gguf"),
        ("Q4_K", ["x-Q4_K_M.gguf", "x.Q4_K.gguf"], "x.Q4_K.gguf"),
        ("Q4_0", ["x-IQ4_0.gguf", "x-q4_0.gguf"], "x-q4_0.gguf"),
        ("Q4_K_XL", ["x-UD-Q4_K_XL.gguf"], "x-UD-Q4_K_XL.gguf"),
        ("Q8_0", ["model.safetensors", "Q8_0/x.gguf"], "Q8_0/x.gguf"),
        ("x.gguf", ["deep/x.gguf"], "deep/x.gguf"),
    ],
)
def test_which_file_is_meant(file: str | None, names: list[str], chosen: str | None):
    assert choose_gguf(Reference("a/b", None, file), names) == chosen


def test_many_files_and_no_tag_are_named(empty_home: Path):
    with pytest.raises(ModelError, match=r"a/b has no GGUF file Q4_K_M; it has x-F16.gguf, x-Q8_0.gguf"):
        choose_gguf(Reference("a/b"), ["x-Q8_0.gguf", "x-F16.gguf"])
    with pytest.raises(ModelError, match="is one of several shards"):
        choose_gguf(Reference("a/b", None, "Q8_0"), ["x-Q8_0-00001-of-00002.gguf", "x-Q8_0-00002-of-00002.gguf"])
