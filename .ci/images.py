"""The steps of deploy/Dockerfile without Docker: `make test-images`, as root on Linux.

Each stage is run in a folder of its own as the root, with this machine's /usr to be read and nothing else of it: no
source tree, no home folder, no compiler. In place of the Python image stands this Python, without its packages. Then
each image is run as its user, in a network of its own, with a root that cannot be written, until it is healthy.
The image for NVIDIA GPUs is not run: its packages are large, and it needs apt and a card.

make test-images                      the wheel is built as in the image, with its libraries: minutes
make test-images WHEEL=dist/….whl     this one is taken instead, as `make wheel` made it
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++")
_PATH = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin", "HOME": "/root"}
_IMAGES = {
    "router": "--replica http://127.0.0.1:1",
    "cpu": "--model smollm2-135m --kv-memory 64MiB --max-context 1024",
}
_MODELS = Path(os.environ.get("HOTLOOP_HOME", "~/.cache/hotloop")).expanduser() / "models"
_WHEEL = os.environ.get("WHEEL", "")
_CHECK = """
{entry} & pid=$!
for i in $(seq 240); do {health} && healthy=1 && break; kill -0 $pid || exit 1; sleep 0.5; done
touch /written 2>/dev/null && echo "the root can be written" && exit 1
kill -TERM $pid; wait $pid && [ -n "$healthy" ]
"""


@dataclass(frozen=True)
class Stage:
    """An image as far as it has come. `root` is what it has beside /usr."""

    root: Path
    environment: Mapping[str, str]
    folder: str = "/"
    user: int = 0
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    health: tuple[str, ...] = ()
    entry: tuple[str, ...] = ()


def main() -> int:
    if os.getuid() or not shutil.which("unshare"):
        sys.exit("the steps of the images are run by root, with unshare (util-linux)")
    with tempfile.TemporaryDirectory(prefix="hotloop-images-") as folder:
        stages = build(Path(folder))
        return int(not all(is_healthy(name, stages[name], flags) for name, flags in _IMAGES.items()))


def build(folder: Path) -> dict[str, Stage]:
    """All stages but those for NVIDIA GPUs."""
    stages: dict[str, Stage] = {}
    name = ""
    for what, rest in instructions():
        if what == "FROM":
            parent, name = rest.split(" AS ")
            if "cuda" not in name:
                print(f"{name} ...", flush=True)
                stages[name] = begin(folder / name, stages.get(parent))
        elif "cuda" not in name:
            stages[name] = step(stages, name, what, rest)
    return stages


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy" / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            what, _, rest = line.partition(" ")
            yield what, rest.strip()


def begin(root: Path, parent: Stage | None) -> Stage:
    if parent:
        subprocess.run(["cp", "-a", parent.root, root], check=True)
        return replace(parent, root=root)
    for each in ("usr", "local", "proc", "dev", "tmp", "opt", "root", *(str(each)[1:] for each in shared())):
        (root / each).mkdir(parents=True)
    subprocess.run(["cp", "-a", "/etc", root], check=True)
    if (settings := Path("~/.config/pip").expanduser()).exists():
        shutil.copytree(settings, root / "root/.config/pip")
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    stage = Stage(root, _PATH)
    run(stage, f"{sys.base_prefix}/bin/python3 -m venv /usr/local")
    return stage


def shared() -> list[Path]:
    """What is to be read beside /usr: this Python, and where pip may find packages on this machine."""
    packages = Path(os.environ.get("PIP_FIND_LINKS", ""))
    return [Path(sys.base_prefix), *([packages] if packages.is_absolute() and packages.is_dir() else [])]


def step(stages: Mapping[str, Stage], name: str, what: str, rest: str) -> Stage:
    stage = stages[name]
    if what == "RUN" and name == "wheel" and _WHEEL:
        (stage.root / "wheels").mkdir()
        shutil.copy(_WHEEL, stage.root / "wheels")
    elif what == "RUN":
        run(stage, rest)
    elif what == "COPY":
        copy(stages, stage, rest)
    elif what == "ENV":
        words = re.sub(r"\$(\w+)", lambda found: stage.environment[found[1]], rest).split()
        return replace(stage, environment={**stage.environment, **dict(word.split("=", 1) for word in words)})
    elif what == "WORKDIR":
        (stage.root / rest[1:]).mkdir(parents=True, exist_ok=True)
        return replace(stage, folder=rest)
    elif what in ("SHELL", "ENTRYPOINT", "HEALTHCHECK"):
        field = {"SHELL": "shell", "ENTRYPOINT": "entry", "HEALTHCHECK": "health"}[what]
        return replace(stage, **{field: tuple(json.loads(rest[rest.index("[") :]))})
    elif what == "USER":
        return replace(stage, user=int(rest))
    else:
        assert what == "EXPOSE", f"{what} is not known here"
    return stage


def copy(stages: Mapping[str, Stage], stage: Stage, rest: str) -> None:
    """Of a folder what is in it, as Docker does."""
    *sources, target = rest.split()
    base = ROOT
    if sources[0].startswith("--from="):
        base = stages[sources.pop(0).removeprefix("--from=")].root
    place = stage.root / stage.folder[1:] / target if not target.startswith("/") else stage.root / target[1:]
    for source in sources:
        path = base / source.lstrip("/")
        (place if path.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", f"{path}/." if path.is_dir() else path, place], check=True)


def run(stage: Stage, command: str) -> None:
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    subprocess.run(enter(stage, [*stage.shell, command], pip), check=True)


def is_healthy(name: str, stage: Stage, flags: str) -> bool:
    if _MODELS.exists():
        shutil.copytree(_MODELS, stage.root / "data/models")
        subprocess.run(["chown", "-R", f"{stage.user}:{stage.user}", stage.root / "data"], check=True)
    check = _CHECK.format(entry=f"{shlex.join(stage.entry)} {flags}", health=shlex.join(stage.health))
    done = subprocess.run(enter(stage, ["/bin/sh", "-c", check], {}, is_apart=True), check=False)
    print(f"{name}: {'healthy, and drained' if done.returncode == 0 else 'failed'}", flush=True)
    return done.returncode == 0


def enter(stage: Stage, command: Sequence[str], more: Mapping[str, str], *, is_apart: bool = False) -> list[str]:
    """A command with the stage as its root. Apart: in a network of its own, with a root that cannot be written."""
    root = shlex.quote(str(stage.root))
    lines = ["set -e", f"mount --bind {root} {root}", f"mount --bind /usr {root}/usr"]
    lines += [f"mount --bind {root}/local {root}/usr/local", f"mount --rbind /dev {root}/dev"]
    lines += [f"mount -t proc proc {root}/proc", f"mount -t tmpfs tmpfs {root}/tmp"]
    lines += [f"mount --bind {each} {root}{each} && mount -o remount,bind,ro {root}{each}" for each in shared()]
    lines += [f"[ ! -e /usr/bin/{each} ] || mount --bind /dev/null {root}/usr/bin/{each}" for each in _COMPILERS]
    if is_apart:
        lines += [f"mount --bind {root}/data {root}/data", f"mount -o remount,bind,ro {root}", "ip link set lo up"]
    given = [f"{name}={value}" for name, value in {**stage.environment, **more}.items()]
    user = ["setpriv", f"--reuid={stage.user}", f"--regid={stage.user}", "--clear-groups"] if stage.user else []
    inside = ["/bin/sh", "-c", f"cd {stage.folder} && exec {shlex.join([*user, *command])}"]
    lines.append(f"exec chroot {root} {shlex.join(['/usr/bin/env', '-i', *given, *inside])}")
    return ["unshare", "--mount", *(["--net"] if is_apart else []), "/bin/sh", "-c", "\n".join(lines)]


if __name__ == "__main__":
    sys.exit(main())
