"""The manual: every link leads somewhere, every page is in its index, and what the README shows is what happens."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs import pipeline_parts
from docs.prefix_map import PICTURES, draw
from docs.pypi_page import render_pypi_page, render_urls

import hotloop.server.errors as server
from hotloop.router.paths import OWNED
from hotloop.wire import errors as wire

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("*.md"))]
MAX_WORDS = 900
CODED = ("doctor", "http", "router", "server", "wire")
"""Folders whose errors reach users by the codes of the HTTP API, or not at all."""


def text_of(page: Path) -> str:
    """Without blocks of code, in which a bracket is no link."""
    parts = re.split(r"^ *```[\w-]*$", page.read_text("utf-8"), flags=re.MULTILINE)
    return "".join(parts[::2])


def anchors_of(page: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text_of(page))
    for link in map("".join, links):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), link


def test_every_page_is_in_the_index_and_on_the_site() -> None:
    index, site = (DOCS / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.glob("*.md"):
        if page.name != "index.md":
            assert f"]({page.name})" in index, page.name
            assert re.search(rf"[\[ ]{page.name}", site), page.name


def codes() -> set[str]:
    """All that an error over HTTP can have."""
    found = {kind.code for kind in server._KINDS.values()} | {code for _, code in server._HTTP_KINDS.values()}
    found |= {code for _, code in wire._CHAT_CODES.values()} | {*OWNED.values(), "http_error"}
    for path in (ROOT / "src").rglob("*.py"):
        raised = r'(?:RouteError|AccessDenied|_refuse|render_refusal)\(\s*\d+, "(\w+)"'
        found |= set(re.findall(raised, path.read_text("utf-8")))
    return found


def exceptions() -> set[str]:
    """Classes below HotloopError and ToolError that users can catch."""
    bases, found = {"HotloopError", "ToolError"}, {"HotloopError", "ToolError"}
    classes = [
        (name, set(re.split(r",\s*", below)))
        for path in (ROOT / "src" / "hotloop").rglob("*.py")
        if path.relative_to(ROOT / "src" / "hotloop").parts[0] not in CODED
        for name, below in re.findall(r"^class ([^_]\w*)\(([^)]*)\):", path.read_text("utf-8"), re.MULTILINE)
    ]
    while bases:
        bases = {name for name, below in classes if below & bases} - found
        found |= bases
    return found


def test_every_error_has_a_heading_that_tells_what_to_do() -> None:
    page = (DOCS / "troubleshoot.md").read_text("utf-8")
    over_http, in_python = page.split("\n## Errors over HTTP\n")[1].split("\n## Errors in Python")
    assert re.findall(r"^### (\w+)$", over_http, re.MULTILINE) == sorted(codes())
    assert re.findall(r"^### (\w+)$", in_python, re.MULTILINE) == sorted(exceptions())


@pytest.mark.parametrize("name", ["architecture.md", "contributing.md"])
def test_files_that_readers_are_sent_to_exist(name: str) -> None:
    named = re.findall(r"`([\w.][\w./-]*/[\w./-]*)`", text_of(DOCS / name))
    assert len(named) > 20
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "src" / "hotloop" / path).exists(), path


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= MAX_WORDS


LINK = re.compile(r"\]\((\S+?)\)|(?:src|srcset)=\"(\S+?)\"")


def test_every_link_of_the_package_index_leads_to_the_repository() -> None:
    """Where it is, or nowhere."""
    readme = (ROOT / "README.md").read_text("utf-8")
    home = "https://code.example/hotloop"
    links, led = (["".join(each) for each in LINK.findall(text)] for text in (readme, render_pypi_page(readme, home)))
    assert len(led) == len(links) > 20
    for link, there in zip(links, led, strict=True):
        assert there in (link, f"{home}/blob/HEAD/{link}", f"{home}/raw/HEAD/{link}")
        assert there.startswith("https://")
    assert not LINK.findall(render_pypi_page(readme, ""))
    assert render_urls("") == {}
    for name, address in render_urls(home).items():
        path = address.partition("/HEAD/")[2]
        assert address.startswith(home), name
        assert (ROOT / path).exists()


def test_what_the_readme_shows_of_the_linter_is_what_it_says() -> None:
    shown = re.search(r"```text\n\$ (hotloop lint .+?)\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert shown
    command = [sys.executable, "-m", *shown[1].split()]
    env = {**os.environ, "COLUMNS": "120"}
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    assert said.returncode == 1
    assert said.stdout.strip() == shown[2].strip()


def test_the_agent_of_the_readme_ends_soon_on_any_model() -> None:
    """The default model may never come to an end by itself."""
    [shown] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    [agent] = [
        each for each in ast.walk(ast.parse(shown)) if isinstance(each, ast.Call) and ast.unparse(each.func) == "Agent"
    ]
    limits = {each.arg: ast.literal_eval(each.value) for each in agent.keywords if each.arg == "max_tokens"}
    assert 0 < limits["max_tokens"] <= 200


def test_the_picture_of_the_readme_is_up_to_date() -> None:
    for name, colours in PICTURES.items():
        assert (DOCS / name).read_text("utf-8") == draw(colours), "run `make docs`"


def test_the_picture_of_the_pipeline_is_up_to_date() -> None:
    figures = json.loads(pipeline_parts.FIGURES.read_text("utf-8"))
    assert figures["runs"].keys() == pipeline_parts.PARTS.keys()
    for name, colours in pipeline_parts.PICTURES.items():
        assert (DOCS / name).read_text("utf-8") == pipeline_parts.draw(colours, figures), "run `make docs`"


async def test_the_run_of_that_picture_can_be_taken_anew() -> None:
    kinds = [kind for kind, *_ in (await pipeline_parts.run_with(pipeline_parts.ON))["bars"]]
    assert (kinds.count("model"), kinds.count("kept")) == (3, 1)
