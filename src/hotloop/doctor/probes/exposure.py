"""The probe that comes as a stranger: who gets an answer, and at which addresses."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from hotloop.doctor import prompts
from hotloop.doctor.facts import Exposed
from hotloop.doctor.target import Target


async def probe_exposure(target: Target, addresses: Sequence[str] | None = None) -> Exposed:
    """`addresses` are those of this machine that are tried where the deployment runs on it."""
    messages = [prompts.user("Say yes.")]
    parts = urlsplit(target.deployment.url)
    server = (await target.deployment.ask(messages, max_tokens=1)).server
    async with target.deployment.newcomer(has_key=False) as stranger:
        status = await stranger.get_status(messages)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    others = [each for each in (own_addresses() if addresses is None else addresses) if each != server]
    is_here = server in ("127.0.0.1", "::1")
    answering = [each for each in others if is_here and await _answers(each, port)]
    return Exposed(server, parts.scheme == "https", status, answering)


async def _answers(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), timeout=1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def own_addresses() -> list[str]:
    """The address that this machine would be seen with. Connecting a datagram socket sends nothing."""
    found = []
    for family, documentation in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((documentation, 9))
            found.append(str(probe.getsockname()[0]))
    return found
