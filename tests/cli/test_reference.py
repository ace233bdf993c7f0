"""The generated pages of the manual say what the program says."""

from dataclasses import fields
from pathlib import Path

from docs.reference import cli_page, configuration_page

from hotloop.cli.settings import CONFIG_CLASSES, env_name, flag_name

DOCS = Path(__file__).parents[2] / "docs"


def test_the_command_line_page_is_up_to_date():
    assert (DOCS / "cli.md").read_text("utf-8") == cli_page(), "run `make docs`"


def test_the_configuration_page_is_up_to_date():
    assert (DOCS / "configuration.md").read_text("utf-8") == configuration_page(), "run `make docs`"


def test_every_setting_is_documented_and_has_a_flag():
    configuration, cli = configuration_page(), cli_page()
    for cls in CONFIG_CLASSES:
        for field in fields(cls):
            row = next(line for line in configuration.splitlines() if line.startswith(f"| `{field.name}` |"))
            assert flag_name(field.name) in row
            assert env_name(field.name) in row
            assert not row.endswith("|  |"), f"{field.name} has no help"
            assert flag_name(field.name) in cli
