"""What deploy/ ships: images, compose, the Helm chart, units, alerts and the dashboard, checked by others' tools.

`make test-deploy` installs the tools: Go renders the chart's templates, kubernetes-validate knows Kubernetes' schemas.
"""

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotloop.cli.settings import read_config
from hotloop.core.config import RouterConfig
from hotloop.router.config import read_routing

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "hotloop"
VALUES = sorted((DEPLOY / "helm" / "values").glob("*.yaml"))
BIN = Path(sys.executable).parent

needs_tools = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="the tools are not installed: make test-deploy"
)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """As Helm does: tables are merged, anything else is replaced."""
    merged = {
        name: merge(values[name], change) if isinstance(change, dict) and isinstance(values.get(name), dict) else change
        for name, change in changes.items()
    }
    return {**values, **merged}


def render(values: Path) -> list[dict[str, Any]]:
    chart = load(CHART / "Chart.yaml")
    given = {
        "values": merge(load(CHART / "values.yaml"), load(values)),
        "release": {"Name": "hot", "Namespace": "agents", "Service": "Helm"},
        "chart": {"Name": chart["name"], "AppVersion": chart["appVersion"]},
    }
    command = [BIN / "go", "run", Path(__file__).with_name("render.go"), CHART / "templates"]
    env = {**os.environ, "GOCACHE": str(ROOT / "build" / "go"), "GOTOOLCHAIN": "local"}
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@needs_tools
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_chart_renders_and_is_valid(values: Path, tmp_path: Path) -> None:
    found = render(values)
    known = [each for each in found if each["kind"] != "ScaledObject"]  # KEDA's own, in no schema of Kubernetes'
    (tmp_path / "rendered.yaml").write_text(yaml.safe_dump_all(known))
    command = [BIN / "kubernetes-validate", "--strict", tmp_path / "rendered.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(names) == len({*names})
    assert {("Deployment", "hot-router"), ("Service", "hot"), ("PodDisruptionBudget", "hot-router")} <= {*names}
    for each in found:
        if each["kind"] in ("Deployment", "StatefulSet"):
            check_pod(each["spec"]["template"]["spec"], {name for kind, name in names if kind == "ConfigMap"})


def check_pod(pod: dict[str, Any], config_maps: set[str]) -> None:
    [container] = pod["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    drain_s = sum(int(environment[f"HOTLOOP_DRAIN_{name}_S"]) for name in ("DELAY", "TIMEOUT"))
    assert pod["terminationGracePeriodSeconds"] > drain_s
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["runAsNonRoot"]
    for volume in pod["volumes"]:
        assert "configMap" not in volume or volume["configMap"]["name"] in config_maps


@needs_tools
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_router_of_the_chart_takes_its_configuration(values: Path, tmp_path: Path) -> None:
    found = render(values)
    [config] = [each for each in found if each["kind"] == "ConfigMap"]
    file = tmp_path / "hotloop.toml"
    file.write_text(config["data"]["hotloop.toml"])
    settings = RouterConfig(**read_config(file, "route"))
    replicas = read_routing(settings, file, {"REPLICA_KEY": "secret"}).replicas
    stateful = [each for each in found if each["kind"] == "StatefulSet"]
    assert {each.kind for each in replicas} == ({"hotloop"} if stateful else {"vllm"})
    external = merge(load(CHART / "values.yaml"), load(values))["external"]
    assert [dict(each.models) for each in replicas] == ([each["models"] for each in external] or [{}] * len(replicas))
    scaled = [each["spec"] for each in found if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
    most = [each.get("maxReplicas", each.get("maxReplicaCount")) for each in scaled]
    assert not most or len(replicas) == most[0]


@needs_tools
@pytest.mark.parametrize(
    "command",
    [("hadolint", "deploy/Dockerfile"), ("compose-lint", "--fail-on", "high", "deploy/compose/compose.yaml")],
    ids=lambda command: command[0],
)
def test_linters_find_nothing(command: tuple[str, ...]) -> None:
    program, *arguments = command
    done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_units_are_valid(tmp_path: Path) -> None:
    for unit in (DEPLOY / "systemd").glob("*.service"):
        text = unit.read_text().replace("/opt/hotloop/bin/hotloop", sys.executable)
        (tmp_path / unit.name).write_text(text)
        command = ["systemd-analyze", "verify", "--recursive-errors=no", tmp_path / unit.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_every_metric_of_alerts_and_dashboard_exists() -> None:
    documented = (ROOT / "docs" / "metrics.md").read_text("utf-8") + (ROOT / "docs" / "routing.md").read_text("utf-8")
    known = {*re.findall(r"^\| `(hotloop_\w+)`", documented, re.MULTILINE)}
    used: set[str] = set()
    for name in ("alerts.yaml", "dashboard.json"):
        used |= {*re.findall(r"\b(hotloop_\w+)", (DEPLOY / "monitoring" / name).read_text())}
    assert {re.sub(r"_bucket$", "", name) for name in used} <= known


def test_the_manual_says_what_to_do_about_each_alert() -> None:
    [group] = load(DEPLOY / "monitoring" / "alerts.yaml")["groups"]
    rules = [rule["alert"] for rule in group["rules"]]
    page = (ROOT / "docs" / "operate.md").read_text("utf-8").partition("\n## Alerts\n")[2]
    assert re.findall(r"^\| `(Hotloop\w+)` ", page, re.MULTILINE) == rules


def test_the_dashboard_is_up_to_date() -> None:
    path = DEPLOY / "monitoring" / "make_dashboard.py"
    assert path.with_name("dashboard.json").read_text() == runpy.run_path(str(path))["render"](), (
        f"run python {path.relative_to(ROOT)}"
    )


def test_compose_mounts_what_there_is_and_its_router_takes_its_file() -> None:
    folder = DEPLOY / "compose"
    compose = load(folder / "compose.yaml")
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (folder / source).exists(), source
        assert service["read_only"]
    routing = read_routing(RouterConfig(), folder / "route.toml", {"REPLICA_KEY": "secret"})
    hosts = {re.sub(r"https?://|:\d+$", "", each.url) for each in routing.replicas}
    targets = load(folder / "prometheus.yaml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert hosts | {"router"} == {target.partition(":")[0] for target in targets}
    assert hosts <= compose["services"].keys()


def test_images_copy_and_install_what_there_is() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r'\.whl\)\[([\w,-]+)\]"', text):
        assert {*named.split(",")} <= extras.keys()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source
    stages = {*re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)}
    assert {"router", "cpu", "cuda"} <= stages
    assert text.count("USER 10001") == text.count("HEALTHCHECK") == 3


def test_the_healthcheck_tells_who_answers() -> None:
    command = [sys.executable, DEPLOY / "healthcheck.py", "1"]
    assert subprocess.run(command, check=False).returncode == 1
