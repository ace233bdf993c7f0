"""A coding helper that reads the repository it is started in, and nothing outside of it.

    hotloop run examples/repository.py "What does the radix tree promise?" --url http://localhost:8000/v1

Give it a model that knows code. The one hotloop brings along is too small for this: it runs, but rarely thinks of
calling a tool.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from hotloop import Agent, Context, Limits, ToolError, tool

MAX_FILES = 200
MAX_LINES = 200
MAX_HITS = 40
SKIPPED = {".git", ".venv", "node_modules", "__pycache__"}


class Repository:
    """A folder that paths cannot lead out of."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def find(self, path: str) -> Path:
        # Resolved first, so that neither `..` nor a link nor an absolute path gets past the check.
        found = (self.root / path).resolve()
        if not found.is_relative_to(self.root):
            raise ToolError(f"{path} is outside of the repository")
        if not found.exists():
            raise ToolError(f"there is no {path}; look with list_files")
        return found

    def files(self, folder: Path) -> Iterator[Path]:
        for here, folders, names in os.walk(folder):
            folders[:] = sorted(set(folders) - SKIPPED)
            # A link to a file may lead outside, which `find` would have refused.
            yield from (path for name in sorted(names) if not (path := Path(here, name)).is_symlink())

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


@tool(read_only=True)
def list_files(repository: Context[Repository], folder: str = ".") -> str:
    """The files below a folder of the repository.

    Args:
        folder: such as "src"
    """
    names = [repository.name(path) for path in repository.files(repository.find(folder))]
    more = f"\n... and {len(names) - MAX_FILES} more: ask for a folder" if len(names) > MAX_FILES else ""
    return "\n".join(names[:MAX_FILES]) + more


@tool(read_only=True)
def read_file(path: str, repository: Context[Repository], first_line: int = 1) -> str:
    """A file's text, 200 lines at most.

    Args:
        path: such as "src/main.py"
        first_line: where to begin
    """
    found = repository.find(path)
    if not found.is_file():
        raise ToolError(f"{path} is not a file")
    lines = found.read_text("utf-8", "replace").splitlines()
    begin = max(first_line, 1) - 1
    shown = lines[begin : begin + MAX_LINES]
    rest = len(lines) - begin - len(shown)
    return "\n".join(shown) + (f"\n... {rest} more lines" if rest > 0 else "")


@tool(read_only=True)
def search(text: str, repository: Context[Repository], folder: str = ".") -> str:
    """Lines that contain a text, in any case, as path:line: text.

    Args:
        text: what to look for, such as "def main"
        folder: where to look
    """
    hits: list[str] = []
    for path in repository.files(repository.find(folder)):
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            if text.lower() in line.lower():
                hits.append(f"{repository.name(path)}:{number}: {line.strip()[:200]}")
            if len(hits) >= MAX_HITS:
                return "\n".join([*hits, "... and more: look for something rarer"])
    return "\n".join(hits) or "nothing found"


context = [Repository(Path.cwd())]

agent = Agent(
    "http://localhost:8700/v1",
    tools=[list_files, read_file, search],
    instructions="You answer questions about the code here. Look things up with the tools; name the files you mean.",
    limits=Limits(turns=20),
    max_tokens=1000,
    temperature=0.0,
)
