"""Structs are compiled before a second thread can read one."""

import subprocess
import sys

_FIND = """
import importlib, pkgutil, sys
import msgspec
import hotloop

for module in pkgutil.walk_packages(hotloop.__path__, "hotloop."):
    try:
        module.name.endswith("__main__") or importlib.import_module(module.name)
    except ImportError as error:  # of an extra that is not installed here
        assert not str(error.name).startswith("hotloop"), error

looked_at = []

def watch(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        looked_at.append(frame.f_locals["obj"])

kinds = [msgspec.Struct]
for kind in kinds:
    kinds += kind.__subclasses__()
for kind in kinds:
    if kind.__module__.startswith("hotloop."):
        looked_at.clear()
        sys.setprofile(watch)
        try:
            msgspec.json.Decoder(kind)
        except TypeError:  # one that cannot be read
            looked_at.clear()
        finally:
            sys.setprofile(None)
        print(kind.__module__, kind.__qualname__, "late" if kind in looked_at else "")
"""
NEVER_READ = {"hotloop.server.openapi", "hotloop.wire.field", "hotloop.wire.part"}


def test_every_struct_that_is_read_is_compiled_where_it_is_defined() -> None:
    """Or two threads that read the first one at the same time crash the process."""
    found = subprocess.run([sys.executable, "-c", _FIND], check=True, capture_output=True, text=True).stdout
    lines = [line.split(" ") for line in found.splitlines() if line.startswith("hotloop.")]
    assert len(lines) > 100
    late = {f"{module}.{name}" for module, name, state in lines if state and module not in NEVER_READ}
    assert not late, "put @compiled on them (hotloop.core.structs)"
    assert any(state for *_, state in lines), "it is noticed when one is compiled late"
