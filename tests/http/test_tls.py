"""HTTPS: with which certificate, and that another takes its place without a restart."""

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hotloop.core.config import RouterConfig, ServerConfig
from hotloop.core.errors import ConfigError
from hotloop.http.listen import bind
from hotloop.http.serving import ApiServer
from hotloop.http.tls import Certificate, certificate_of


def write_certificate(folder: Path, name: str, *, password: bytes | None = None) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    private = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, private))
    (folder / "cert.pem").write_bytes(signed.public_bytes(pem))
    return Certificate(str(folder / "cert.pem"), str(folder / "key.pem"))


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@contextmanager
def listening(certificate: Certificate) -> Iterator[tuple[ApiServer, socket.socket]]:
    server = ApiServer(hello, grace_s=1, certificate=certificate, reload=lambda: "changed: nothing")
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield server, listener
        finally:
            server.stop()
            thread.join(60)


def shown_by(listener: socket.socket) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(listener.getsockname(), timeout=60) as raw,
        context.wrap_socket(raw) as connected,
    ):
        certificate = x509.load_der_x509_certificate(connected.getpeercert(binary_form=True) or b"")
    return certificate.subject.rfc4514_string()


def test_requests_are_answered_and_a_renewed_certificate_is_shown_after_a_reload(tmp_path: Path) -> None:
    with listening(write_certificate(tmp_path, "first")) as (server, listener):
        url = server.url_of(listener)
        assert url.startswith("https://127.0.0.1:")
        with httpx.Client(verify=False, timeout=60) as client:
            assert client.get(url).text == "hello"
            assert shown_by(listener) == "CN=first"
            write_certificate(tmp_path, "second")
            server.reload()
            assert client.get(url).text == "hello"
        assert shown_by(listener) == "CN=second"


def test_a_request_that_is_refused_can_be_read_over_tls(tmp_path: Path) -> None:
    with listening(write_certificate(tmp_path, "first")) as (server, listener), httpx.Client(verify=False) as client:
        answer = client.get(server.url_of(listener), headers={"x-large": "a" * 100_000}, timeout=60)
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize("config", [ServerConfig, RouterConfig])
def test_what_cannot_be_used_is_told_before_anything_is_loaded(config: type, tmp_path: Path) -> None:
    given = write_certificate(tmp_path, "here")
    assert certificate_of(config()) is None
    assert certificate_of(config(tls_cert=given.cert, tls_key=given.key)) == given
    with pytest.raises(ConfigError, match="needed together"):
        config(tls_cert=given.cert)
    with pytest.raises(ConfigError, match="cannot serve HTTPS with"):
        certificate_of(config(tls_cert=given.cert, tls_key=str(tmp_path / "none.pem")))
    (other := tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"cannot serve HTTPS with .*: .*MISMATCH"):
        certificate_of(config(tls_cert=given.cert, tls_key=write_certificate(other, "other").key))
    locked = write_certificate(other, "locked", password=b"secret")
    with pytest.raises(ConfigError, match="is encrypted"):
        certificate_of(config(tls_cert=locked.cert, tls_key=locked.key))
