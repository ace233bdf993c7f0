"""C++ sources of ours as libraries: as a wheel brings them, else compiled once by the machine's own compiler, and kept.

A wheel has each library for several kinds of CPU, of which the best that this one is loads. A source tree has none:
there they are compiled for this very CPU.
"""

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hotloop.models.catalogue import home

BUILD_ERRORS = (OSError, AttributeError, subprocess.SubprocessError)
EMULATED = "-DEMULATE_TILES"
"""With it there is no need for AMX: for tests of what is made for it."""
_COMPILE_TIMEOUT_S = 300
_FOLDER = Path(__file__).parent
_FROM_WHEEL = _FOLDER / "lib"

Cpus = Mapping[str, Mapping[str, set[str]]]
# For each machine: what can be compiled for, the best first, and what the CPU has to have for it.
_AMX = {"sapphirerapids": {"amx_bf16", "amx_int8", "amx_tile", "avx512_bf16", "avx512_fp16"}}
_CPUS = {
    "x86_64": {
        **_AMX,
        "cascadelake": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"},
        "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    },
    "aarch64": {"armv8.2-a+fp16+dotprod": {"asimdhp", "asimddp"}},
}


@dataclass(frozen=True, slots=True)
class Library:
    files: tuple[str, ...]
    flags: tuple[str, ...] = ()
    cpus: Cpus | None = None
    """What it can be compiled for; None for any CPU."""
    has_tbb: bool = True
    """Whether it shares its threads with OpenVINO: it is compiled for the TBB that this brings."""

    def arguments(self, march: str) -> tuple[str, ...]:
        includes = f"-I{_openvino() / 'include'}" if self.has_tbb else f"-I{_FOLDER / 'native'}"
        late = ("-undefined", "dynamic_lookup") if platform.system() == "Darwin" and self.has_tbb else ()
        tune = ("-mtune=neoverse-n1",) if platform.machine() == "aarch64" else ()  # or products come in any order
        return (
            f"-march={march}",
            *tune,
            "-std=c++20",
            *self.flags,
            includes,
            *late,
            *(str(_FOLDER / f) for f in self.files),
        )

    def texts(self) -> Iterator[str]:
        paths = (*(_FOLDER / name for name in self.files), *sorted(_FOLDER.rglob("*.h")))
        yield from (path.read_text() for path in paths)


def _decoder(attention: str, *flags: str, cpus: Cpus | None = None) -> Library:
    return Library(("native/decoder.cpp", attention), ("-pthread", "-ffp-contract=off", *flags), cpus, has_tbb=False)


LIBRARIES = {
    "portable-float": Library(("openvino/native/portable.cpp",), ("-DKV=float",)),
    "portable-half": Library(("openvino/native/portable.cpp",), ("-DKV=half",)),
    "portable-int8_t": Library(("openvino/native/portable.cpp",), ("-DKV=int8_t",)),
    "experts": Library(("openvino/native/experts.cpp",)),
    "linear": Library(("openvino/native/linear.cpp",)),
    "decoder-bf16": _decoder("native/attention.cpp", cpus={"x86_64": _AMX}),
    "decoder-byte_tiles": _decoder("native/attention.cpp", "-DKV=int8_t", cpus={"x86_64": _AMX}),
    "decoder-float": _decoder("openvino/native/portable.cpp", "-DKV=float"),
    "decoder-half": _decoder("openvino/native/portable.cpp", "-DKV=half"),
    "decoder-int8_t": _decoder("openvino/native/portable.cpp", "-DKV=int8_t"),
}


def load_library(name: str, *flags: str) -> ctypes.CDLL:
    """The library for this CPU: a wheel's, else what was compiled before, else compiled. Raises one of BUILD_ERRORS.

    No wheel has it with flags that it would not have on its own.
    """
    library = LIBRARIES[name]
    if library.has_tbb:  # what a library has not, it takes from those that are loaded
        for tbb in (_openvino() / "libs").glob("libtbb.*"):
            ctypes.CDLL(str(tbb), ctypes.RTLD_GLOBAL)
    cpus = list(usable_cpus(library))
    for march in cpus:
        if not flags and (path := _FROM_WHEEL / f"{name}-{march}.so").exists():
            return ctypes.CDLL(str(path))
    if library.cpus and not cpus and EMULATED not in flags:
        raise OSError("this CPU has no AMX")
    arguments = (*library.arguments(cpus[0] if library.cpus and cpus else "native"), *flags)
    return build(build_path(name, *library.texts(), *arguments), *arguments)


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


def build_path(name: str, *recipe: str) -> Path:
    """Compiled code is kept under a name made from all that went into it, in a folder of ours that can be written.

    That is the CPU, too: a home may be shared by several machines.
    """
    parts = (*recipe, compiler() or "", platform.machine(), *sorted(cpu_features()))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = home() / "cache" / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="hotloop-"))
    return folder / f"{name}-{digest}.so"


def build(path: Path, *arguments: str) -> ctypes.CDLL:
    """What was compiled before, if it is whole: its size stands beside it, since loading half a library is fatal."""
    size = path.with_suffix(".size")
    if not path.exists() or not size.exists() or size.read_text() != str(path.stat().st_size):
        _compile(path, arguments)
        size.write_text(str(path.stat().st_size))
    return ctypes.CDLL(str(path))


def build_for_wheel(folder: Path) -> tuple[list[Path], str]:
    """Every library for every kind of CPU of the compiler's machine; and the platform of a wheel with them in it.

    They need no other library than the C library of this machine, or a newer one.
    """
    program = compiler()
    if program is None or platform.system() != "Linux":
        raise OSError("libraries for wheels are made on Linux, with a C++ compiler")
    machine = subprocess.run([program, "-dumpmachine"], capture_output=True, text=True, check=True).stdout.split("-")[0]
    made = []
    for name, library in LIBRARIES.items():
        for march in (library.cpus or _CPUS).get(machine, {}):
            path = folder / f"{name}-{march}.so"
            _compile(path, ("-static-libstdc++", "-static-libgcc", "-s", *library.arguments(march)))
            made.append(path)
    libc = platform.libc_ver()[1].replace(".", "_")
    return made, f"manylinux_{libc}_{machine}"


def _openvino() -> Path:
    spec = importlib.util.find_spec("openvino")
    if spec is None or spec.origin is None or not (folder := Path(spec.origin).parent / "include" / "tbb").exists():
        raise FileNotFoundError("OpenVINO is not here, or came without its TBB library")
    return folder.parents[1]


def _compile(path: Path, arguments: tuple[str, ...]) -> None:
    program = compiler()
    if program is None:
        raise FileNotFoundError("there is no C++ compiler here (c++, g++ or clang++)")
    draft = path.with_name(f"{path.stem}-{os.getpid()}.so")
    command = [program, "-O3", "-fPIC", "-shared", *arguments, "-o", str(draft)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise OSError(errors[0] if errors else f"the compiler ended with status {done.returncode}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
