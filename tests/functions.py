"""What a process has seen of PostgreSQL's functions outlives a test. These helpers begin anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from django.db import connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, ClaimOutcome
from django_idempotency.engine.stores import functions, store_for
from django_idempotency.engine.stores.functions import Seen
from django_idempotency.engine.stores.postgresql_functions import PostgreSQLFunctionsStore
from tests.claims import SNAPSHOT, a_claim

WAYS = ("functions", "statements")
migration = import_module("django_idempotency.migrations.0006_postgresql_functions")
CLAIM, COMPLETE = functions.SIGNATURES
BY_FUNCTION, BY_STATEMENT = ["BEGIN", "SELECT"], ["BEGIN", "INSERT"]
RENAMED = [f"ALTER FUNCTION {CLAIM} RENAME TO elsewhere", f"ALTER FUNCTION {COMPLETE} RENAME TO elsewhere"]
NAMED_BACK = [
    f"ALTER FUNCTION {CLAIM.replace('idempotency_claim_1', 'elsewhere')} RENAME TO idempotency_claim_1",
    f"ALTER FUNCTION {COMPLETE.replace('idempotency_complete_1', 'elsewhere')} RENAME TO idempotency_complete_1",
]


def sql(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def raising(text: str, sqlstate: str) -> str:
    """The migration's function with another body, which raises this error."""
    return f"{replacing(text).partition('$$')[0]}$$ BEGIN RAISE 'the call failed' USING ERRCODE = '{sqlstate}'; END $$"


def replacing(text: str) -> str:
    """The migration's function, for where there is one already."""
    return text.replace("CREATE", "CREATE OR REPLACE", 1).replace("{schema}", "public")


@contextmanager
def changed(*there: str, back: tuple[str, ...]) -> Iterator[None]:
    sql(*there)
    try:
        yield
    finally:
        sql(*back)


def request_like(*work: Callable[[], Any], **changes: Any) -> ClaimOutcome:
    """Claim, work and complete in one transaction, as a request in atomic mode does."""
    store = store_for("default")
    with transaction.atomic():
        outcome = store.claim(a_claim(**changes))
        if isinstance(outcome, Claimed):
            for step in work:
                step()
            store.complete(outcome, SNAPSHOT, resource=("order", "7"), last=True)
    return outcome


def look_again() -> None:
    """The next claim looks for the functions. What earlier tests have left behind decides nothing."""
    store = store_for("default")
    if isinstance(store, PostgreSQLFunctionsStore):
        store._seen = Seen("default")


def look_now() -> None:
    """The same, and the look is over. A claim looks where it may, and is rolled back."""
    look_again()
    _claim()


def look_if_due() -> None:
    """Look now if the next claim would."""
    store = store_for("default")
    if isinstance(store, PostgreSQLFunctionsStore) and store._seen.look_due(connection):
        _claim()


def _claim() -> None:
    with transaction.atomic():
        store_for("default").claim(a_claim(key="looks for the functions"))
        transaction.set_rollback(True)


@contextmanager
def going(way: str) -> Iterator[None]:
    """All threads go by the functions, or by statements as where connections are not kept. A pool keeps them itself."""
    settings = connection.settings_dict
    kept = 60 if way == "functions" and not settings["OPTIONS"].get("pool") else 0
    before, settings["CONN_MAX_AGE"] = settings["CONN_MAX_AGE"], kept
    look_again()
    try:
        yield
    finally:
        settings["CONN_MAX_AGE"] = before
        look_again()
