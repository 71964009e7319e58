"""Nothing that a proxy pins a connection for, as PostgreSQL itself logs what reaches it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from django_idempotency.engine.stores import store_for
from tests.ways import request_like

pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not is_psycopg3, reason="psycopg2 is sent no prepared statements"),
]
LOGGING = "-c log_statement=all -c client_min_messages=log"
"""The server sends this client what it writes to its log. Only a superuser may ask for it."""
REQUESTS = 3
PINNING = re.compile(r"\b(PREPARE|EXECUTE|DEALLOCATE|DISCARD|set_config|pg_(?:try_)?advisory_lock|(?<=[:;] )SET)\b")


@contextmanager
def logged(**changes: Any) -> Iterator[list[str]]:
    """What the server logs about the connection to the default database, after it has been set up."""
    store_for("default")  # asks once in a process whether this is Citus
    usual = connections["default"]
    wrapper = usual.copy()
    options = {**usual.settings_dict["OPTIONS"], "options": LOGGING, **changes}
    wrapper.settings_dict.update(OPTIONS=options)
    connections["default"] = wrapper
    log: list[str] = []
    try:
        wrapper.ensure_connection()
        wrapper.connection.add_notice_handler(lambda notice: log.append(notice.message_primary or ""))
        yield log
    finally:
        wrapper.close()
        connections["default"] = usual


def _pinning(log: list[str]) -> set[str]:
    assert sum("COMMIT" in line for line in log) == 2 * REQUESTS  # else the log would prove nothing
    return {found for line in log for found in PINNING.findall(re.sub("'[^']*'", "", line))}


def _requests() -> None:
    for number in range(REQUESTS):
        request_like(key=f"key-{number}")
        request_like(key=f"key-{number}")


def test_statements_are_prepared_by_default() -> None:
    """From the second request of a connection on: the log shows what the switch has to prevent."""
    with logged() as log:
        _requests()
    assert _pinning(log) >= {"PREPARE", "EXECUTE"}


def test_the_setting_ends_it(settings: Any) -> None:
    """First requests and replays, all by SQL text, and nothing else that outlives a transaction."""
    settings.IDEMPOTENCY = {"PREPARED_STATEMENTS": False}
    with logged() as log:
        _requests()
    assert _pinning(log) == set()
