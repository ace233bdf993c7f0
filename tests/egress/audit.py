"""Copied as `sitecustomize.py` onto the path of Python processes: they record, and refuse, every address but loopback.

It stands on `sys.path`, so helper processes that are given nothing but that are covered, too. Standard library only.
"""

import ipaddress
import os
import socket
import sys
from typing import Any

_RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contacted")
_OWN_NAMES = ("localhost", socket.gethostname())
_DOCUMENTATION = ("192.0.2.1", "2001:db8::1")  # `hotloop doctor` asks for the route to them, which sends nothing
_LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


def _is_local(host: Any) -> bool:
    if not host:  # nobody, or any address of this machine
        return True
    name = host.decode() if isinstance(host, bytes) else host
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name in _OWN_NAMES
    return address.is_loopback or address.is_unspecified


def _host(event: str, args: tuple[Any, ...]) -> Any:
    """The one that is looked up or contacted; None where there is none."""
    if event in _LOOKUPS:
        return args[0]
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        is_remote = args[0].family in (socket.AF_INET, socket.AF_INET6) and args[1]
        return args[1][0] if is_remote else None
    return None


def _watch(event: str, args: tuple[Any, ...]) -> None:
    host = _host(event, args)
    if host in _DOCUMENTATION and args[0].type == socket.SOCK_DGRAM:
        raise OSError("there is no route")
    if not _is_local(host):
        with open(_RECORD, "a") as record:
            record.write(f"{event} {host} by {sys.orig_argv}\n")
        raise OSError(f"{event} to {host} is refused")


sys.addaudithook(_watch)
