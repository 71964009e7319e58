"""The statements that the runbook prints for a table that grows."""

from __future__ import annotations

import re

import pytest
from django.db import connection

from tests.acceptance.pages import ROOT
from tests.admin_pages import make_key

PAGE = (ROOT / "docs/runbook.md").read_text().partition("### A table that grows")[2].partition("\n### ")[0]


@pytest.mark.django_db(transaction=True)
def test_the_space_of_deleted_keys_is_given_back() -> None:
    """Each server takes its statement, as it is written, beside living keys."""
    make_key(key="lives")
    rebuilt = {"postgresql": "REINDEX TABLE CONCURRENTLY", "mysql": "OPTIMIZE TABLE"}.get(connection.vendor)
    if rebuilt is None:
        pytest.skip(f"about a server, the database at hand is {connection.vendor}")
    (statement,) = re.findall(rf"`({rebuilt} \w+)`", PAGE)
    with connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.execute("SELECT count(*) FROM django_idempotency_idempotencykey")
        assert cursor.fetchone() == (1,)


@pytest.mark.django_db
def test_the_caller_of_a_flood_is_named_first() -> None:
    """By its scope, with the operation and the number of its keys."""
    make_key(key="another", scope="user:1", operation="POST orders/")
    for number in range(3):
        make_key(key=f"flood {number}", scope="user:2", operation="POST orders/")
    (statement,) = re.findall(r"^    (SELECT scope.*?);$", PAGE, re.DOTALL | re.MULTILINE)
    with connection.cursor() as cursor:
        cursor.execute(statement)
        assert list(cursor.fetchall()) == [("user:2", "POST orders/", 3), ("user:1", "POST orders/", 1)]
