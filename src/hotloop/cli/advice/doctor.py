"""`hotloop doctor`: is a deployment fit for agents?"""

import asyncio
from typing import TYPE_CHECKING

from cyclopts.types import NonNegativeFloat, PositiveFloat

from hotloop.cli.output import console, show
from hotloop.cli.settings import ApiKey, JsonOutput
from hotloop.core.config import ServerConfig

if TYPE_CHECKING:
    from hotloop.doctor.examine import Examination, TimeLimits


def doctor(
    url: str | None = None,
    /,
    *,
    model: str | None = None,
    idle: NonNegativeFloat = 6.0,
    timeout: PositiveFloat = 60.0,
    api_key: ApiKey = None,
    as_json: JsonOutput = False,
) -> int:
    """Check a live deployment for common production problems and suggest fixes.

    Exits with 1 if a check failed. Sends about 50 requests, a few of which it aborts.

    Parameters
    ----------
    url
        Address of a hotloop, vLLM, SGLang or TGI server, hosted API or gateway; that of `hotloop serve` if not given.
    model
        Model to request; the first that is listed if not given.
    idle
        Seconds that a connection must stay open between two turns, as if a tool ran.
    timeout
        Time limit of one check, in seconds.
    """
    from hotloop.doctor.examine import TimeLimits, examination_json, examination_table

    pace = TimeLimits(idle_s=idle, check_s=timeout)
    examination = asyncio.run(_examine(url or default_url(), model, api_key, pace))
    show(examination_json(examination), examination_table(examination), as_json)
    return int(examination.has_failed)


def default_url() -> str:
    """Where `hotloop serve` listens unless told otherwise."""
    server = ServerConfig()
    return f"http://{server.host}:{server.port}"


async def _examine(url: str, model: str | None, api_key: str | None, pace: "TimeLimits") -> "Examination":
    from hotloop.doctor.deployment import Deployment
    from hotloop.doctor.examine import examine

    with console.status(f"connecting to {url} ...") as status:
        async with Deployment(url, model=model, api_key=api_key) as deployment:
            return await examine(deployment, pace=pace, watch=lambda check: status.update(f"{check} ..."))
