"""The generated pages of the manual say what the program says."""

from dataclasses import fields
from functools import cache
from pathlib import Path

import docs.reference
from docs.python_api import python_page
from docs.reference import configuration_page, llms_page

from hotloop.cli.command_line import SETTING_GROUPS
from hotloop.cli.settings import env_name, flag_name
from hotloop.core.config import CONFIG_CLASSES, FEATURES

DOCS = Path(__file__).parents[2] / "docs"
cli_page = cache(docs.reference.cli_page)  # all of the help is rendered for it


def test_the_command_line_page_is_up_to_date():
    assert (DOCS / "cli.md").read_text("utf-8") == cli_page(), "run `make docs`"


def test_the_configuration_page_is_up_to_date():
    assert (DOCS / "configuration.md").read_text("utf-8") == configuration_page(), "run `make docs`"


def test_the_page_on_python_is_up_to_date():
    assert (DOCS / "python.md").read_text("utf-8") == python_page(), "run `make docs`"


def test_the_index_for_programs_is_up_to_date():
    assert (DOCS / "llms.txt").read_text("utf-8") == llms_page(), "run `make docs`"


def test_every_setting_is_documented_and_has_a_flag():
    configuration, cli = configuration_page(), cli_page()
    for cls in CONFIG_CLASSES:
        for field in fields(cls):
            if field.name in FEATURES:
                continue
            row = next(line for line in configuration.splitlines() if line.startswith(f"| `{field.name}` |"))
            assert flag_name(field.name) in row
            assert env_name(field.name) in row
            assert not row.endswith("|  |"), f"{field.name} has no help"
            assert flag_name(field.name) in cli


def test_what_is_on_by_default_is_a_feature_that_can_be_disabled_and_is_documented():
    switches = {field.name for cls in CONFIG_CLASSES for field in fields(cls) if field.default is True}
    assert switches == {*FEATURES}
    rows = configuration_page().split("## Features")[1].split("\n## ")[0]
    for name in FEATURES:
        assert f"| `{name}` | " in rows
        assert name in cli_page()
        assert flag_name(name) not in cli_page()


def test_every_setting_is_in_a_group_and_help_has_neither_line_breaks_of_the_source_nor_empty_defaults():
    settings = {field.name for cls in CONFIG_CLASSES for field in fields(cls)} - {*FEATURES}
    assert settings | {"disable"} == SETTING_GROUPS.keys()
    serve = cli_page().split("## hotloop serve")[1].split("\n## ")[0]
    titles = [line.split("─ ")[1].split(" ─")[0] for line in serve.splitlines() if line.startswith("╭─")]
    assert titles[2:] == [
        *("Model", "Hardware", "Cache", "Scheduling", "Features", "Drafting", "Formats", "Network", "Security"),
        "Observability",
    ]
    assert "[default: ()]" not in cli_page()
    assert "[default: False]" not in cli_page()
    for panel in serve.split("╰─")[:-1]:
        continued = [line for line in panel.splitlines() if line.startswith("│     ")]
        assert len({len(line) - len(line[1:].lstrip()) for line in continued}) <= 1, "one column in each group"
