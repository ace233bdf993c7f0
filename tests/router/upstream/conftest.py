"""Certificates for the replicas that have one."""

import pytest
from tests.router.upstream.http2_replica import Trust, make_trust


@pytest.fixture(scope="session")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return make_trust(tmp_path_factory.mktemp("http2"), "h2")


@pytest.fixture(scope="session")
def old_trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return make_trust(tmp_path_factory.mktemp("http1"), "http/1.1")
