"""A replica that speaks HTTP/2 over TLS, with a certificate made for the occasion."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

import h2.config
import h2.connection
import h2.events
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Trust:
    """What a replica shows, and what believes it."""

    shown: ssl.SSLContext
    believed: ssl.SSLContext


def make_trust(folder: Path, protocol: str) -> Trust:
    """A certificate for 127.0.0.1 that vouches for itself, offering one protocol."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    path = folder / "replica.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(path)
    shown.set_alpn_protocols([protocol])
    return Trust(shown, ssl.create_default_context(cafile=str(path)))


@dataclass
class Stream:
    """One request, and the way to answer it."""

    connection: "Http2Connection"
    stream_id: int
    headers: dict[bytes, bytes]
    body: bytearray = field(default_factory=bytearray)

    def begin(self, status: int = 200) -> None:
        self.connection.state.send_headers(self.stream_id, [(":status", str(status)), ("x-from", "replica")])
        self.connection.flush()

    def say(self, piece: bytes, *, is_last: bool = False) -> None:
        self.connection.state.send_data(self.stream_id, piece, end_stream=is_last)
        self.connection.flush()

    def reset(self) -> None:
        self.connection.state.reset_stream(self.stream_id)
        self.connection.flush()


class Http2Connection(asyncio.Protocol):
    """One connection to the replica."""

    def __init__(self, replica: "Http2Replica") -> None:
        self.state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.is_gone = asyncio.Event()
        self._replica = replica
        self._streams: dict[int, Stream] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._replica.connections.append(self)
        self.state.initiate_connection()
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone.set()

    def data_received(self, data: bytes) -> None:
        for event in self.state.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                headers = {bytes(name): bytes(value) for name, value in event.headers}
                self._streams[event.stream_id] = Stream(self, event.stream_id, headers)
            elif isinstance(event, h2.events.DataReceived):
                self._streams[event.stream_id].body += event.data
                self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self._replica.answer(self._streams.pop(event.stream_id))
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.state.data_to_send())


class Http2Replica:
    """Gives each request to `answer`, and keeps the connections that came."""

    def __init__(self, answer: Callable[[Stream], None], trust: Trust) -> None:
        self.answer = answer
        self.connections: list[Http2Connection] = []
        self._trust = trust

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Http2Connection(self), "127.0.0.1", 0, ssl=self._trust.shown)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """No connection outlives a test."""
        self._server.close()
        async with asyncio.timeout(30):
            for connection in self.connections:
                await connection.is_gone.wait()
        await self._server.wait_closed()
