"""That docs/routing.md says what is there, and nothing else."""

import re
from pathlib import Path

from hotloop.core.config import RouterConfig
from hotloop.router import config
from hotloop.router.config import ReplicaConfig, RoutingConfig
from hotloop.router.kinds import KINDS
from hotloop.router.metrics import RouterMetrics
from hotloop.router.placement.policy import POLICIES
from hotloop.router.replicas.replica_set import ReplicaSet
from hotloop.router.spending.spending import open_spending
from hotloop.router.stabilise import StablePrompts
from hotloop.router.tiers.tiers import Saved
from hotloop.trace.tracer import NullTracer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "routing.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> list[str]:
    """The words in code of the first column of the tables under a heading."""
    section = PAGE.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_metric_is_documented():
    config = RoutingConfig(router=RouterConfig(), replicas=(ReplicaConfig(url="http://a", name="a"),))
    families = RouterMetrics(
        ReplicaSet(config),
        lambda: Saved(()),
        NullTracer(),
        StablePrompts(),
        open_spending(None, lambda model, usage: 0.0),
    ).registry.collect()
    exported = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert sorted(first_cells("What is shown")) == sorted(exported)


def test_every_policy_kind_and_key_is_documented():
    assert first_cells("Placement") == list(POLICIES)
    assert first_cells("Kinds") == list(KINDS)
    for name, kind in KINDS.items():
        [row] = re.findall(rf"^\| `{name}` \| ([^|]*) \|", PAGE, re.MULTILINE)
        assert set(row.strip().split(", ")) == kind.apis
    keys = config.REPLICA_KEYS
    assert sorted(first_cells("A file")) == sorted(keys)
