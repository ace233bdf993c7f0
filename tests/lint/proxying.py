"""Servers in threads: a proxy that lints, and APIs for it to stand before."""

from contextlib import contextmanager

import uvicorn
from tests.threads import ThreadedServer

from hotloop.lint.meter import Meter
from hotloop.lint.proxy import LintProxy, LiveLint, ProxyServer
from hotloop.lint.rules import RULES


@contextmanager
def serving(server, scheme="http"):
    with ThreadedServer(server) as served:
        yield served.url.replace("http", scheme, 1)


@contextmanager
def watching(upstream, tell=lambda finding: None):
    watch = LiveLint(RULES, tell, meter=Meter())
    with serving(ProxyServer(LintProxy(upstream, watch.see))) as url:
        yield url, watch


def an_api(app, **settings):
    return uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", **settings))


async def body_of(receive):
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            return body
