"""docs/ray.md: its files can be read, its manifest names what is there, and no setting is missing."""

import ast
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from hotloop.ray.config import RayConfig, parse_ray_config

PAGE = (Path(__file__).parents[2] / "docs" / "ray.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_file_can_be_read(text: str):
    parse_ray_config(tomllib.loads(text)["ray"])


def test_the_manifest_deploys_the_application_that_is_there():
    [text] = blocks("yaml")
    service = yaml.safe_load(text)
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    found = find_spec(module)
    assert found
    assert found.origin
    tree = ast.parse(Path(found.origin).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert parse_ray_config(application["args"]).max_replicas == 8
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert [group["maxReplicas"] for group in cluster["workerGroupSpecs"]] == [8]


def test_every_setting_is_documented():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
    for name in RayConfig.__struct_fields__:
        if name not in ("hotloop", "vllm"):
            assert name in rows
            default = getattr(RayConfig(), name)
            assert rows[name] == (f"`{default}`" if default else "") or default == 0
