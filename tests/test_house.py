"""The house rules that no linter knows."""

import ast
import graphlib
import importlib
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.command import app_of

import hotloop
from hotloop.cli.app import load_all

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
COMMAND_LINE = load_all()


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_names(requirements: list[str]) -> set[str]:
    return {canonical(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in requirements}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def own_files() -> list[Path]:
    folders = ("src", "tests", "benchmarks", "examples", "docs", "deploy", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    top = [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in files + top if "__pycache__" not in path.parts]


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def shell_lines(path: Path) -> list[str]:
    """Lines of the shell blocks of a page, continued lines joined."""
    blocks = re.findall(r"```(?:bash|sh|shell|console)\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip().removeprefix("$ ") for line in lines]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_dependency_is_pinned_to_a_version_and_nothing_else():
    wanted = requirement_names(PROJECT["dependencies"] + installed_extras() + PYPROJECT["dependency-groups"]["dev"])
    assert wanted <= pins().keys()
    for name, version in pins().items():
        assert name == canonical(name)
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}: {version} is not a plain version"


def extras(*names: str) -> list[str]:
    wanted = [requirement for name in names for requirement in PROJECT["optional-dependencies"][name]]
    return [requirement for requirement in wanted if not requirement.startswith("hotloop[")]


def installed_extras() -> list[str]:
    """What `make setup` installs of the extras."""
    named = re.search(r"'\.\[(.+?)\]' --group dev", (ROOT / "Makefile").read_text())[1].split(",")
    return extras("fast", "engine", *named)


def test_dependencies_are_ranges():
    for requirement in PROJECT["dependencies"] + installed_extras():
        assert ">=" in requirement
        assert "==" not in requirement.split(";")[0]


def test_core_is_kept_from_every_dependency_but_two():
    contract = next(c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["name"].startswith("core"))
    wanted = requirement_names(PROJECT["dependencies"] + extras("fast", "engine", "cpu"))
    assert wanted - {"cachetools", "msgspec"} <= {canonical(name) for name in contract["forbidden_modules"]}


def test_the_version_has_a_place_in_the_changelog():
    assert f"## [{hotloop.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_public_names_are_there():
    for name in hotloop.__all__:
        assert getattr(hotloop, name) is not None
    assert set(hotloop.__all__) == set(dir(hotloop))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hotloop.nonsense  # noqa: B018


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """The modules of ours that a file imports, at its top, in a function, or for a type only."""
    found = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {str(node.module)} & modules
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All in it, and what these consist of; not what an expression does, where no import can be."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


@pytest.mark.parametrize(("root", "package"), [("src", "hotloop"), (".", "benchmarks")])
def test_no_modules_import_each_other_in_a_circle(root: str, package: str):
    files = {
        ".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / root / package).rglob("*.py")
    }
    graph = {name: imports_of(path, set(files)) - {name} for name, path in files.items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_the_package_is_typed():
    assert (ROOT / "src" / "hotloop" / "py.typed").exists()


def test_modules_say_what_lives_in_them():
    for path in (ROOT / "src").rglob("*.py"):
        assert path.read_text().startswith('"""'), f"{path.relative_to(ROOT)} does not say what lives in it"


def test_no_file_knows_this_machine():
    """Neither where packages come from nor where anybody's folders are."""
    forbidden = re.compile(r"(index-url|find-links|/home/[a-z]|/root/)")
    for path in own_files():
        if path != Path(__file__):
            assert not forbidden.search(path.read_text("utf-8", "replace")), path.relative_to(ROOT)


def test_ci_runs_the_readers_own_commands():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make ")] == [
        "make check",
        "make test",
        "make test-long",
        "make test-apart",
        "make test-page",
        "make test-ray",
        "make test-kernels",
        "make test-arm",
        "make test-deploy",
        "make docs-site",
    ]
    assert {"setup", "check", "test", "demo", "bench", "docs", "clean", "help"} <= makefile_targets()


def test_make_help_lists_every_target():
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"make ([a-z-]+)", text)) == makefile_targets()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_in_the_documentation_exist(page: Path):
    for line in shell_lines(page):
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert set(words[1:]) <= makefile_targets(), line
        elif words and Path(words[0]).name == "hotloop":
            COMMAND_LINE.parse_args(words[1:], exit_on_error=False, print_error=False)
        elif words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
            parse_benchmark(words[2], words[3:])


def parse_benchmark(name: str, flags: list[str]) -> None:
    """Raises where there is no such benchmark, or it does not take these flags."""
    package = ROOT / name.replace(".", "/") / "__main__.py"
    module = importlib.import_module(f"{name}.__main__" if package.exists() else name)
    if command := getattr(module, name.rpartition(".")[2], None):
        app_of(command).parse_args(flags, exit_on_error=False, print_error=False)


def benchmark_names() -> list[str]:
    folder = ROOT / "benchmarks"
    packages = [path.parent.name for path in folder.glob("*/__main__.py")]
    return sorted(packages + [path.stem for path in folder.glob("*.py") if "__main__" in path.read_text()])


@pytest.mark.parametrize("name", benchmark_names())
def test_every_benchmark_is_in_the_manual(name: str):
    assert f"| `python -m benchmarks.{name}" in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


def test_the_wheel_knows_no_benchmark_of_itself():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) benchmarks\b", path.read_text(), re.MULTILINE), path
