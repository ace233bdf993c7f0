"""Limits hold to the request, whatever else goes on, and a refusal says which one and until when."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.http.keys import KeyLimits, Tenant
from hotloop.router.errors import RouteError
from hotloop.router.spending.book import MAX_TREES, OTHERS, Charge, SpendBook, read_spent
from hotloop.router.spending.quotas import Quotas

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def quotas(self) -> Quotas:
        return Quotas(lambda: self.at, lambda: NOON + self.at)


def tenant(**limits: Any) -> Tenant:
    return Tenant("a" * 64, is_apart=True, name="anna", limits=KeyLimits(**limits))


def refusal(quotas: Quotas, who: Tenant, tokens: int = 0, money: float = 0.0) -> RouteError:
    with pytest.raises(RouteError) as caught:
        quotas.admit(who, tokens=tokens, money=money)
    return caught.value


def test_the_request_after_the_last_waits_for_the_first_to_be_a_minute_old() -> None:
    clock, who = Clock(), tenant(requests_per_minute=3)
    quotas = clock.quotas()
    for at in (0.0, 10.0, 20.0):
        clock.at = at
        quotas.admit(who, tokens=1, money=0)
    clock.at = 25.0
    error = refusal(quotas, who)
    assert (error.status, error.code, error.retry_after_s) == (429, "quota_exceeded", 35.0)
    assert str(error) == "the API key 'anna' has reached its limit of 3 requests per minute"
    clock.at = 60.0
    quotas.admit(who, tokens=1, money=0)
    assert refusal(quotas, who).retry_after_s == 10.0


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(1, 5))
def test_no_minute_has_more_than_its_requests(gaps: list[float], limit: int) -> None:
    clock, who, admitted = Clock(), tenant(requests_per_minute=limit), list[float]()
    quotas = clock.quotas()
    for gap in gaps:
        clock.at += gap
        recent = [at for at in admitted if clock.at - at < 60]
        if len(recent) < limit:
            quotas.admit(who, tokens=0, money=0)
            admitted.append(clock.at)
        else:
            refusal(quotas, who)


def test_what_is_under_way_counts_as_estimated_and_then_as_it_was() -> None:
    quotas, who = Clock().quotas(), tenant(tokens_per_minute=100, money_per_month=5.0)
    first = quotas.admit(who, tokens=100, money=1.0)
    assert "100 tokens per minute" in str(refusal(quotas, who))
    quotas.settle(first, tokens=40, money=1.0)
    second = quotas.admit(who, tokens=30, money=1.0)
    quotas.settle(second, tokens=30, money=4.0)
    error = refusal(quotas, who)
    assert "5 money per month" in str(error)
    assert error.retry_after_s == 12 * 3600


def test_a_month_ends_and_is_restored_after_a_restart() -> None:
    clock, who = Clock(), tenant(requests_per_month=2)
    quotas = clock.quotas()
    late = quotas.admit(who, tokens=0, money=0)
    quotas.admit(who, tokens=0, money=0)
    assert refusal(quotas, who).retry_after_s == 12 * 3600
    clock.at = 12 * 3600.0
    quotas.admit(who, tokens=0, money=0)
    quotas.settle(late, tokens=5, money=1.0)  # of the month before
    again = clock.quotas()
    book = SpendBook()
    for _ in range(2):
        book.add("2026-12", "anna", "m", "", Charge(1, 1, 0, 1, 0.0))
    for key, month, used in book.used():
        again.restore(key, month, used)
    refusal(again, who)


def test_keys_do_not_share_a_limit() -> None:
    quotas = Clock().quotas()
    one, two = (Tenant(str(i) * 64, name=f"k{i}", limits=KeyLimits(requests_per_minute=1)) for i in range(2))
    quotas.admit(one, tokens=0, money=0)
    quotas.admit(two, tokens=0, money=0)
    for who in (one, two):
        refusal(quotas, who)


def test_the_book_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "spend.json"
    book = SpendBook(path)
    for number in range(3):
        book.add("2026-11", "anna", "m", "s", Charge(1, 10, 4, number, 0.5))
    book.write()
    [line] = read_spent(path)
    assert (line.requests, line.prompt, line.cached, line.output, line.money) == (3, 30, 12, 3, 1.5)
    again = SpendBook(path)
    again.add("2026-11", "anna", "m", "s", Charge(1, 1, 0, 0, 0.0))
    again.write()
    assert json.loads(path.read_bytes())["spent"][0]["requests"] == 4
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_works_for_a_session_counts_where_that_does() -> None:
    book = SpendBook()
    assert book.root("anna", "main", "") == "main"
    assert book.root("anna", "helper", "main") == "main"
    assert book.root("anna", "helper of the helper", "helper") == "main"
    assert book.root("anna", "helper", "") == "main"
    assert book.root("anna", "", "") == ""
    assert book.root("bob", "helper", "") == "helper", "another key's session of that name is another"


def test_no_more_trees_are_kept_than_a_month_may_have() -> None:
    book = SpendBook()
    for number in range(MAX_TREES + 10):
        book.add("2026-11", "anna", "m", f"s{number}", Charge(1, 1, 0, 0, 0.0))
    assert len(book.lines) == MAX_TREES + 1
    assert next(line for line in book.lines if line.tree == OTHERS).requests == 10


def test_a_disk_that_is_full_is_told_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file" / "spend.json"
    book = SpendBook(path)
    (tmp_path / "file").write_text("in the way")
    book.add("2026-11", "anna", "m", "s", Charge(1, 1, 0, 0, 0.0))
    book.write()
    assert "spending not written" in caplog.text
    (tmp_path / "file").unlink()
    book.write()
    assert read_spent(path)
