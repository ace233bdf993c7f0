"""What `make wheel` adds to the build: our C++ libraries, so that nobody needs a compiler, and the package's page.

A build without zig (ziglang) makes a wheel of Python and sources alone: these are then compiled where they run.
LIBRARIES=required, as `make wheel` sets it, makes that an error instead. MACHINE names another machine to build for.
PROJECT_URL says where the repository is published: links and pictures of the page lead there.
"""

import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class LibrariesHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "src"))
        try:
            from hotloop.backends.cpu.build import build_for_wheel  # noqa: PLC0415 - not on the path before

            machine = os.environ.get("MACHINE", platform.machine())
            libraries, tag = build_for_wheel(Path(tempfile.mkdtemp()), machine)
        except (ImportError, OSError) as error:
            if os.environ.get("LIBRARIES") == "required":
                raise
            self.app.display_warning(f"the wheel has no compiled libraries: {error}")
            return
        build_data["force_include"] |= {str(each): f"hotloop/backends/cpu/lib/{each.name}" for each in libraries}
        build_data |= {"pure_python": False, "tag": f"py3-none-{tag}"}


class PageHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        sys.path.insert(0, self.root)
        from docs.pypi_page import render_pypi_page, render_urls  # noqa: PLC0415 - not on the path before

        home = os.environ.get("PROJECT_URL", "").rstrip("/")
        readme = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": render_pypi_page(readme, home)}
        metadata["urls"] = render_urls(home)
