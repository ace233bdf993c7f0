"""What a proxy must not stumble over: certificates, encodings, hang-ups, large bodies, odd methods."""

import asyncio
import gzip
import json
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.lint.proxying import an_api, body_of, serving, watching
from tests.lint.stories import bodies

from hotloop.lint.proxy import LintProxy, ProxyServer

ANSWER = {
    "id": "a",
    "choices": [{"message": {"role": "assistant", "content": "Hello."}}],
    "usage": {"prompt_tokens": 7},
}
BODY = bodies()[0][0]
SPOKEN = json.dumps(ANSWER).encode()
PATH = "/v1/chat/completions"


def answering(body=SPOKEN, status=200, headers=(), seen=None):
    """An API that says the same to everyone; `seen` is given the scopes."""

    async def app(scope, receive, send):
        await body_of(receive)
        if seen is not None:
            seen.append(scope)
        named = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """For 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an api")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificate")
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(secret)
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder


@pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted", "unknown"])
def test_an_upstream_with_a_certificate_of_its_own(certificate, monkeypatch, is_trusted):
    """`SSL_CERT_FILE` says whom to trust; nobody else is."""
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    api = an_api(answering(), ssl_certfile=certificate / "cert.pem", ssl_keyfile=certificate / "key.pem")
    with serving(api, "https") as address, watching(address) as (url, watch):
        answer = httpx.post(url + PATH, json=BODY, verify=ssl.create_default_context())
    assert answer.status_code == (200 if is_trusted else 502)
    assert is_trusted or "certificate" in answer.json()["error"]["message"].lower()
    assert watch.num_requests == is_trusted


def post_raw(url):
    """What came, as it came."""
    with httpx.stream("POST", url + PATH, verify=False, json=BODY) as answer:
        return answer.headers.get("content-encoding"), b"".join(answer.iter_raw())


def test_a_compressed_answer_passes_untouched_and_is_read():
    squeezed, seen = gzip.compress(json.dumps(ANSWER).encode()), []
    api = an_api(answering(squeezed, headers=[(b"content-encoding", b"gzip")]))
    with serving(api) as address, serving(ProxyServer(LintProxy(address, seen.append))) as url:
        assert post_raw(url) == ("gzip", squeezed)
    assert [(exchange.answer.usage.num_prompt, exchange.answer.parts[0].text) for exchange in seen] == [(7, "Hello.")]


def test_an_answer_that_becomes_too_large_is_passed_on_and_not_read():
    squeezed, seen = gzip.compress(json.dumps(ANSWER | {"unread": "a" * (33 << 20)}).encode()), []
    api = an_api(answering(squeezed, headers=[(b"content-encoding", b"gzip")]))
    with serving(api) as address, serving(ProxyServer(LintProxy(address, seen.append))) as url:
        assert post_raw(url) == ("gzip", squeezed)
    assert [exchange.answer.parts for exchange in seen] == [()]


def test_answers_are_asked_for_in_encodings_that_can_be_read():
    seen = []
    with serving(an_api(answering(seen=seen))) as address, watching(address) as (url, _):
        httpx.post(url + PATH, verify=False, json=BODY, headers={"accept-encoding": "gzip, deflate;q=0.5, br, zstd"})
        httpx.post(url + PATH, verify=False, json=BODY, headers={"accept-encoding": "br"})
    assert [dict(scope["headers"])[b"accept-encoding"] for scope in seen] == [b"gzip, deflate;q=0.5", b"identity"]


def test_what_is_compressed_otherwise_passes_and_its_request_is_linted():
    api = an_api(answering(b"\x1b\x00", headers=[(b"content-encoding", b"br")]))
    with serving(api) as address, watching(address) as (url, watch):
        assert post_raw(url) == ("br", b"\x1b\x00")
    assert watch.num_requests == 1


class Halting:
    """An API that begins to answer, and then breaks off or waits; `is_gone` is set once its client has hung up."""

    def __init__(self):
        self.is_gone = threading.Event()
        self.breaks = False

    async def __call__(self, scope, receive, send):
        await body_of(receive)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b'data: {"choices": []}\n\n', "more_body": True})
        if self.breaks:
            return
        while True:
            if (await receive())["type"] == "http.disconnect":
                self.is_gone.set()
                return


def test_the_first_byte_comes_at_once_and_a_client_that_hangs_up_is_hung_up_on():
    api = Halting()
    with serving(an_api(api)) as address, watching(address) as (url, watch):
        with httpx.stream("POST", url + PATH, verify=False, json=BODY | {"stream": True}) as answer:
            assert next(answer.iter_bytes()) == b'data: {"choices": []}\n\n'
        assert api.is_gone.wait(30)
    assert watch.num_requests == 1


def test_an_answer_that_breaks_off_breaks_off_for_the_client(caplog):
    api = Halting()
    api.breaks = True
    with serving(an_api(api)) as address, watching(address) as (url, _):
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", url + PATH, verify=False, json=BODY) as answer,
        ):
            answer.read()
        assert httpx.head(url + "/v1/models", verify=False).status_code == 200
    assert [record.exc_info for record in caplog.records if record.name == "hotloop.lint"] == [None]


def test_bodies_of_ten_megabytes():
    large = b"x" * (10 << 20)
    seen = []

    async def echo(scope, receive, send):
        body = await body_of(receive)
        seen.append(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    with serving(an_api(echo)) as address, watching(address) as (url, watch):
        assert httpx.post(url + PATH, verify=False, content=large, timeout=60).content == large
    assert seen == [len(large)]
    assert watch.num_requests == 0


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "DELETE", "GET"])
def test_other_methods_and_unknown_paths_pass(method):
    seen = []
    with serving(an_api(answering(status=404, seen=seen))) as address, watching(address) as (url, watch):
        answer = httpx.request(method, f"{url}/no/such/path", verify=False)
    assert (answer.status_code, seen[0]["method"], seen[0]["path"]) == (404, method, "/no/such/path")
    assert answer.headers["content-length"] == str(len(json.dumps(ANSWER)))
    assert watch.num_requests == 0


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_refusals_pass_with_their_headers(status):
    api = an_api(answering(b'{"error": {"message": "no"}}', status, [(b"retry-after", b"7")]))
    with serving(api) as address, watching(address) as (url, watch):
        answer = httpx.post(url + PATH, verify=False, json=BODY)
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["error"]["message"]) == (status, "7", "no")
    assert watch.num_requests == 0


def test_websockets_are_refused_in_plain_words():
    seen = []
    asked = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x", "sec-websocket-version": "13"}
    with serving(an_api(answering(seen=seen))) as address, watching(address) as (url, _):
        answer = httpx.get(f"{url}/v1/realtime", verify=False, headers=asked)
    assert answer.status_code == 501
    assert "websockets" in answer.json()["error"]["message"]
    assert not seen


def test_connections_are_kept():
    seen, ports = [], set()
    with (
        serving(an_api(answering(seen=seen))) as address,
        watching(address) as (url, _),
        httpx.Client(verify=False) as client,
    ):
        for _ in range(3):
            with client.stream("POST", url + PATH, json=BODY) as answer:
                ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
                answer.read()
    assert len(seen) == 3
    assert len({scope["client"] for scope in seen}) == len(ports) == 1


def test_keys_are_neither_kept_nor_told(capsys, caplog):
    told = []
    secret = {"authorization": "Bearer sk-secret", "x-api-key": "sk-secret", "cookie": "sk-secret"}
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with serving(an_api(answering())) as address, watching(address, told.append) as (url, watch):
        httpx.post(url + PATH, verify=False, json=BODY, headers=secret)
        assert "sk-secret" not in repr(watch.__dict__)
    with watching(f"http://127.0.0.1:{port}") as (url, _):
        assert "sk-secret" not in httpx.post(url + PATH, verify=False, json=BODY, headers=secret).text
    said = capsys.readouterr()
    assert "sk-secret" not in said.out + said.err + caplog.text + repr(told)


def test_a_ping_is_not_the_first_token():
    async def app(scope, receive, send):
        await body_of(receive)
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
        await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b'data: {"choices": []}\n\n'})

    seen = []
    with serving(an_api(app)) as address, serving(ProxyServer(LintProxy(address, seen.append))) as url:
        httpx.post(url + PATH, verify=False, json={**BODY, "stream": True})
    assert seen[0].ttft_ms >= 200
