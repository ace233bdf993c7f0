"""C++ sources of ours as libraries: as a wheel brings them, else compiled once by the machine's own compiler, and kept.

A wheel has one library for each of several kinds of CPU, with all that others are made of; the best that this CPU can
run loads. A source tree has none: there those that are asked for are compiled for this very CPU. Wheels are built by
zig, which brings its own C++ library and links against an old glibc whatever the build machine has.
"""

import ctypes
import fcntl
import hashlib
import importlib.util
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from hotloop.core.home import home

log = logging.getLogger(__name__)

BUILD_ERRORS = (OSError, AttributeError, subprocess.SubprocessError)
EMULATED = "-DEMULATE_TILES"
"""With it there is no need for AMX: for tests of what is made for it."""
_COMPILE_TIMEOUT_S = 600
_FOLDER = Path(__file__).parent
SOURCES = _FOLDER / "csrc"
_FROM_WHEEL = _FOLDER / "lib"

Cpus = Mapping[str, Mapping[str, set[str]]]
# For each machine: what can be compiled for, the best first, and what the CPU has to have for it.
_AMX = {"sapphirerapids": {"amx_bf16", "amx_int8", "amx_tile", "avx512_bf16", "avx512_fp16"}}
_CPUS: Cpus = {
    "x86_64": {
        **_AMX,
        "cascadelake": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"},
        "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    },
    "aarch64": {
        "armv8.2-a+fp16+dotprod+i8mm": {"asimdhp", "asimddp", "i8mm"},
        "armv8.2-a+fp16+dotprod": {"asimdhp", "asimddp"},
    },
    "arm64": {"apple-m1": set()},  # Apple's: all of its own have what is used
}
_ZIG_CPUS = {
    "x86-64-v4": "x86_64_v4",
    "x86-64-v3": "x86_64_v3",
    "armv8.2-a+fp16+dotprod": "generic+v8_2a+fullfp16+dotprod",
    "armv8.2-a+fp16+dotprod+i8mm": "generic+v8_2a+fullfp16+dotprod+i8mm",
    "apple-m1": "apple_m1",
}
"""What zig calls them, where that is not what gcc and clang do."""
_WHEEL_GLIBC = "2.28"
"""The oldest C library a wheel runs with: that of RHEL 8 and Debian 10, and of the manylinux images in use."""
_WHEEL_MACOS = "11.0"


@dataclass(frozen=True, slots=True)
class Library:
    sources: Mapping[str, tuple[str, ...]]
    """Each with the flags that are for it alone."""
    flags: tuple[str, ...] = ()
    cpus: Cpus | None = None
    """What it can be compiled for; None for any CPU."""

    def objects(self, folder: Path, march: str, *flags: str) -> list[str]:
        """Compiled at the same time, and only once for all libraries that have a source with the same flags."""
        tune = ("-mtune=neoverse-n1",) if platform.machine() == "aarch64" else ()  # or products come in any order
        headers = [path.read_text() for path in sorted(SOURCES.rglob("*.h"))]

        def compile_source(name: str) -> str:
            source = SOURCES / name
            arguments = self.arguments(name, _target(march), *tune, *flags)
            recipe = (*arguments[:-1], source.read_text(), *headers)  # the same wherever the sources are
            path = folder / f"{source.stem}-{_digest(*recipe)}.o"
            if not _is_whole(path):
                log.info("compiling %s for this CPU, which is done once", name)
            make(path, *arguments)
            return str(path)

        with ThreadPoolExecutor() as pool:
            return [*pool.map(compile_source, self.sources)]

    def arguments(self, name: str, *flags: str) -> tuple[str, ...]:
        """What a source is compiled with. Later flags win."""
        own = (*self.flags, *self.sources[name])
        return ("-O3", "-fPIC", "-std=c++20", *own, *flags, "-c", str(SOURCES / name))

    def link(self, path: Path, *arguments: str) -> Path:
        make(path, "-shared", *self.flags, *arguments)
        return path


def _target(march: str) -> str:
    """Apple's compilers want a CPU by its name, of which the first has all that is used."""
    return "-mcpu=apple-m1" if platform.machine() == "arm64" else f"-march={march}"


def _decoder(attention: str, name: str, kv: str, cpus: Cpus | None = None) -> Library:
    """With attention over keys and values of type `kv`, in functions that begin with `name`."""
    sources = {"decoder.cpp": (), attention: (f"-DENTRY(function)={name}_##function", f"-DKV={kv}")}
    return Library(sources, ("-pthread", "-ffp-contract=off"), cpus)


_ANY, _TILES = "attention.cpp", "attention_tiles.cpp"
LIBRARIES = {
    "bf16": _decoder(_TILES, "bf16", "bf16", {"x86_64": _AMX}),
    "byte_tiles": _decoder(_TILES, "byte_tiles", "int8_t", {"x86_64": _AMX}),
    **{kv: _decoder(_ANY, kv, kv) for kv in ("float", "half", "int8_t")},
}
"""By what attention in them calls keys and values."""


def load_library(name: str, *flags: str) -> ctypes.CDLL:
    """The library for this CPU: a wheel's, else what was compiled before, else compiled. Raises one of BUILD_ERRORS.

    No wheel has it with flags that it would not have on its own.
    """
    library = LIBRARIES[name]
    cpus = list(usable_cpus(library))
    for march in cpus:
        if not flags and (path := _FROM_WHEEL / f"decoder-{march}.so").exists():
            return ctypes.CDLL(str(path))
    if library.cpus and not cpus and EMULATED not in flags:
        raise OSError("this CPU has no AMX")
    folder = _kept()
    objects = library.objects(folder, cpus[0] if library.cpus and cpus else "native", *flags)
    return ctypes.CDLL(str(library.link(folder / f"decoder-{name}-{_digest(*objects)}.so", *objects)))


def has_amx() -> bool:
    """Whether there is something of ours for it: our C++ asks Linux for tiles."""
    return platform.system() == "Linux" and any(usable_cpus(LIBRARIES["bf16"]))


def usable_cpus(library: Library) -> Iterator[str]:
    """What this CPU can run of that it can be compiled for, the best first."""
    for march, needs in (library.cpus or _CPUS).get(platform.machine(), {}).items():
        if needs <= cpu_features():
            yield march


@cache
def cpu_features() -> frozenset[str]:
    """As Linux calls them; nothing where there is no Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(word for line in lines for word in line.split())


def compiler() -> str | None:
    names = (os.environ.get("CXX", "c++"), "c++", "g++", "clang++")
    return next((path for name in names if (path := shutil.which(name))), None)


def _kept() -> Path:
    """Where compiled code is: a folder of ours that can be written."""
    folder = home() / "cache" / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="hotloop-"))
    return folder


def _digest(*recipe: str) -> str:
    """Of all that goes into a file. That is the CPU, too: a home may be shared by several machines."""
    parts = (*recipe, compiler() or "", platform.machine(), *sorted(cpu_features()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def make(path: Path, *arguments: str) -> None:
    """By the compiler, unless it was made before and is whole. While one process makes it, others wait."""
    if _is_whole(path):
        return
    with _size_of(path).open("a+") as size:
        with suppress(OSError):  # of a file system without locks: then each makes it
            fcntl.flock(size, fcntl.LOCK_EX)
        if not _is_whole(path):
            _compile(path, arguments)
            size.truncate(0)
            size.write(str(path.stat().st_size))


def _is_whole(path: Path) -> bool:
    """Its size stands beside it, since loading half a library is fatal."""
    size = _size_of(path)
    return path.exists() and size.exists() and size.read_text() == str(path.stat().st_size)


def _size_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.size")


def build_for_wheel(folder: Path, machine: str) -> tuple[list[Path], str]:
    """A library for every kind of CPU of a machine, and the platform tag of a wheel with them in it.

    Each has all that can be compiled for its CPU, so that what most of it is, the decoder, is there once. They need no
    library but the system's own, from _WHEEL_GLIBC or _WHEEL_MACOS on. Raises one of BUILD_ERRORS.
    """
    if machine not in _CPUS:
        raise OSError(f"there are no libraries for {machine}, only for {' and '.join(_CPUS)}")
    if platform.system() != "Linux" or importlib.util.find_spec("ziglang") is None:
        raise OSError("libraries for wheels are built on Linux, by ziglang from PyPI")
    is_apple = machine == "arm64"
    target = f"aarch64-macos.{_WHEEL_MACOS}" if is_apple else f"{machine}-linux-gnu.{_WHEEL_GLIBC}"
    zig = (sys.executable, "-m", "ziglang", "c++", "-target", target)
    recipes = {}
    for march in _CPUS[machine]:
        cpu = f"-mcpu={_ZIG_CPUS.get(march, march)}"
        fitting = [library for library in LIBRARIES.values() if march in (library.cpus or _CPUS).get(machine, {})]
        parts = [library.arguments(source, cpu) for library in fitting for source in library.sources]
        recipes[folder / f"decoder-{march}.so"] = [*dict.fromkeys(parts)]
    objects = {recipe: folder / f"{i}.o" for i, recipe in enumerate(chain.from_iterable(recipes.values()))}

    def link(path: Path) -> None:
        own = (f"-Wl,-install_name,@rpath/{path.name}",) if is_apple else ()  # or it is called as it is here
        _compile(path, ("-shared", "-s", *own, *(str(objects[recipe]) for recipe in recipes[path])), zig)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda recipe: _compile(objects[recipe], recipe, zig), objects))
        list(pool.map(link, recipes))
    system = f"macosx_{_WHEEL_MACOS}" if is_apple else f"manylinux_{_WHEEL_GLIBC}"
    return [*recipes], f"{system.replace('.', '_')}_{machine}"


def _compile(path: Path, arguments: tuple[str, ...], program: Sequence[str] = ()) -> None:
    """By that program, for a wheel, or within a time by the machine's own compiler."""
    limit_s = None if program else _COMPILE_TIMEOUT_S
    if not program and (own := compiler()):
        program = (own,)
    if not program:
        raise FileNotFoundError("there is no C++ compiler here (c++, g++ or clang++)")
    draft = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
    command = [*program, *arguments, "-o", str(draft)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise OSError(errors[0] if errors else f"the compiler ended with status {done.returncode}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
