"""What the router tells about its fleet, to people and programs. No key is ever part of it."""

from typing import Any

from hotloop.router.errors import RouteError
from hotloop.router.replicas.fleet import Fleet
from hotloop.router.replicas.replica import Replica


def show_replicas(fleet: Fleet) -> dict[str, Any]:
    """How each replica is, those on their way out too."""
    return {
        "policy": fleet.config.router.policy,
        "waiting": len(fleet.room),
        "replicas": [_show(each) for each in (*fleet.replicas.values(), *fleet.leaving)],
    }


def list_models(fleet: Fleet) -> dict[str, Any]:
    """Every model that some replica has, in OpenAI's shape."""
    names = sorted({name for each in fleet.replicas.values() if each.state == "up" for name in each.models})
    cards = [{"id": name, "object": "model", "created": 0, "owned_by": "hotloop"} for name in names]
    return {"object": "list", "data": cards}


def show_model(fleet: Fleet, name: str) -> Any:
    """Raises RouteError where no replica has it."""
    for card in list_models(fleet)["data"]:
        if card["id"] == name:
            return card
    raise RouteError(404, "model_not_found", f"no replica has the model {name!r:.200}")


def _show(replica: Replica) -> dict[str, Any]:
    return {
        "name": replica.name,
        "url": replica.config.url,
        "kind": replica.kind.name,
        "state": replica.state,
        "why": replica.why,
        "models": sorted(replica.models),
        "apis": sorted(replica.apis),
        "running": replica.num_running,
        "elsewhere": replica.num_elsewhere,
        "connections": replica.upstream.num_open,
    }
