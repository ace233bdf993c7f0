"""The keys that are good, where they come from, what each may do, and whom a router may speak for."""

from pathlib import Path

import pytest

from hotloop.core.errors import ConfigError
from hotloop.http.keys import TENANT_HEADER, AccessDenied, Key, Keys, Tenant, read_keys, tenant_id

ALONE = Keys((Key(b"router"),))
SHARED = Keys((Key(b"anna"), Key(b"bob"), Key(b"root", "admin"), Key(b"scrape", "metrics")))
CHAT = "/v1/chat/completions"


def bearer(secret: bytes, vouched: bytes | None = None) -> dict[bytes, bytes]:
    headers = {b"authorization": b"Bearer " + secret}
    return headers if vouched is None else {**headers, TENANT_HEADER: vouched}


def refused(keys: Keys, headers: dict[bytes, bytes], path: str = CHAT) -> tuple[int, str]:
    with pytest.raises(AccessDenied) as caught:
        keys.admit(headers, path)
    return caught.value.status, caught.value.code


def test_keys_are_given_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the first team\nsk-one\n\n  sk-two  \nclé\nsk-root admin\nsk-prom\t metrics\n")
    assert read_keys(None, None) == Keys()
    assert read_keys("sk-zero", None) == Keys((Key(b"sk-zero"),))
    keys = read_keys("sk-zero", str(file))
    secrets = [b"sk-zero", b"sk-one", b"sk-two", "clé".encode(), b"sk-root", b"sk-prom"]
    assert [key.secret for key in keys.keys] == secrets
    assert [key.role for key in keys.keys] == ["tenant"] * 4 + ["admin", "metrics"]
    for secret in secrets[:-1]:
        expected = tenant_id(secret)
        assert keys.admit({b"authorization": b"bearer  " + secret + b" "}, CHAT).id == expected
        assert keys.admit({b"x-api-key": secret, b"authorization": b"Bearer wrong"}, CHAT).id == expected
    for wrong in (b"", b"# of the first team", b"sk-on", b"sk-one\nsk-two", b"sk-root admin"):
        assert refused(keys, {b"authorization": b"Bearer " + wrong, b"x-api-key": wrong}) == (401, "invalid_api_key")
    assert refused(keys, {}) == (401, "invalid_api_key")


@pytest.mark.parametrize("content", [b"", b"# none\n\n", b"\xff\xfe", b"a keys\n", b"a admin keys", b"keys metrics"])
def test_a_file_without_a_key_is_an_error_and_not_an_open_door(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="keys"):
        read_keys(None, str(file))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the API keys in"):
        read_keys("given", str(tmp_path / "none"))


def test_one_key_is_one_tenant_and_has_one_role(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-one\nsk-one tenant\n")
    assert not read_keys("sk-one", str(file)).is_shared
    file.write_text("sk-one\nsk-one admin\n")
    with pytest.raises(ConfigError, match="two roles"):
        read_keys(None, str(file))


def test_no_key_is_ever_shown() -> None:
    assert "anna" not in repr(SHARED)
    assert "anna" not in repr(SHARED.admit(bearer(b"anna"), CHAT))


def test_roles() -> None:
    assert refused(SHARED, bearer(b"scrape")) == (403, "forbidden")
    assert refused(SHARED, bearer(b"scrape"), "/ui/api/runs") == (403, "forbidden")
    SHARED.admit(bearer(b"scrape"), "/metrics")
    for path in ("/metrics", "/router/replicas"):
        assert refused(SHARED, bearer(b"anna"), path) == (403, "forbidden")
        assert SHARED.admit(bearer(b"root"), path).is_admin
        ALONE.admit(bearer(b"router"), path)
    anna, root = SHARED.admit(bearer(b"anna"), CHAT), SHARED.admit(bearer(b"root"), CHAT)
    assert (anna.sees_only, root.sees_only) == (anna.id, None)
    assert root.may_see(anna.id)
    assert not anna.may_see(root.id)
    assert ALONE.admit(bearer(b"router"), CHAT).sees_only is None


def test_sessions_of_two_tenants_have_two_names() -> None:
    anna, bob = (SHARED.admit(bearer(name), CHAT) for name in (b"anna", b"bob"))
    assert len({anna.qualify("s"), bob.qualify("s"), "s"}) == 3
    assert anna.qualify("") == ""
    assert ALONE.admit(bearer(b"router"), CHAT).qualify("s") == "s"


@pytest.mark.parametrize("secret", [b"router", b""])
def test_a_router_names_its_tenants(secret: bytes) -> None:
    """With the only key there is, or where there is none."""
    keys = ALONE if secret else Keys()
    for tenant in (Tenant(tenant_id(b"anna"), is_apart=True), Tenant(tenant_id(b"r"), is_admin=True, is_apart=True)):
        assert keys.admit(bearer(secret, tenant.vouch(secret)), CHAT) == tenant


def test_nobody_else_does() -> None:
    anna, bob = Tenant(tenant_id(b"anna"), is_apart=True), Tenant(tenant_id(b"bob"), is_apart=True)
    good = anna.vouch(b"router")
    signature = good.partition(b".")[2]
    forged = (
        b"",
        anna.id.encode(),
        bob.id.encode() + b"." + signature,
        anna.id.encode() + b":admin." + signature,
        anna.vouch(b"another"),
        anna.vouch(b""),
        good + b"0",
        good.upper(),
    )
    for value in forged:
        assert refused(ALONE, bearer(b"router", value)) == (403, "invalid_tenant"), value
    assert refused(SHARED, bearer(b"anna", bob.vouch(b"anna"))) == (403, "invalid_tenant"), "one of several keys"
    assert SHARED.admit(bearer(b"root", bob.vouch(b"root")), CHAT) == bob
