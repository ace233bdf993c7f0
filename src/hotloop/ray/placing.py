"""Serve's hook for choosing replicas, filled with the router's own placement. Lives in the process of an ingress."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from hotloop.ray.tickets import Outline, Tickets
from hotloop.router.placement.placement import Placement
from hotloop.router.placement.policy import POLICIES
from hotloop.router.request import BLOCK_TOKENS


class PlacementRouter(RequestRouter):  # type: ignore[misc]
    """Serve makes one for every handle, and calls it on one event loop."""

    def initialize_state(self, *, policy: str, capacity_tokens: int) -> None:
        """Gets `request_router_kwargs`, before anything else is called."""
        self._tickets = Tickets(Placement(POLICIES[policy], block_tokens=BLOCK_TOKENS))
        self._capacity_tokens = capacity_tokens

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        before, now = _by_name(self.curr_replicas.values()), _by_name(replicas)
        for name in before.keys() - now.keys():
            self._tickets.remove_replica(name)
        for name in now.keys() - before.keys():
            capacity = now[name].replica_metadata.get("capacity_tokens", self._capacity_tokens)
            self._tickets.placement.add_replica(name, capacity_tokens=capacity)
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        self._tickets.remove_replica(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The one that placement chooses, then all others, in case it does not take the request after all."""
        if pending_request is None:
            return [candidate_replicas]
        outline: Outline = next(each for each in pending_request.args if isinstance(each, Outline))
        able = _by_name(candidate_replicas)
        if outline.owner in able:
            able = {outline.owner: able[outline.owner]}
        free = _by_name(self.select_available_replicas([*able.values()]))
        attempt = pending_request.future
        choice = self._tickets.offer(attempt, outline, (free or able).keys())
        if choice is None:
            return [candidate_replicas]
        attempt.add_done_callback(partial(self._settle, pending_request))
        pending_request.kwargs["choice"] = choice
        return [[able.pop(choice.name)], [*able.values()]]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        self._tickets.complete(replica_id.unique_id, internal_request_id, call_soon)

    def _settle(self, pending_request: PendingRequest, attempt: Any) -> None:
        name = None if attempt.cancelled() else attempt.result().replica_id.unique_id
        request_id = pending_request.metadata.internal_request_id
        self._tickets.settle(attempt, name, request_id, asyncio.get_running_loop().call_soon_threadsafe)


def _by_name(replicas: Iterable[RunningReplica]) -> dict[str, RunningReplica]:
    return {replica.replica_id.unique_id: replica for replica in replicas}
