"""A schema for each tenant: work that leaves `search_path` on another tenant changes nothing of that tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from django_idempotency import ClaimLost, LeaseLost, Operation, run_once
from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import SNAPSHOT, a_claim
from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
TENANTS = ("tenant_a", "tenant_b")


def switch(schema: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path TO {schema}")


@pytest.fixture(autouse=True)
def _schemas() -> Iterator[None]:
    """The key tables and the orders of two tenants. Both count their ids from 1."""
    with connection.cursor() as cursor:
        for schema in TENANTS:
            cursor.execute(f"CREATE SCHEMA {schema}")
            for model in (IdempotencyKey, IdempotencyStep, Order):
                table = model._meta.db_table
                cursor.execute(f"CREATE TABLE {schema}.{table} (LIKE public.{table} INCLUDING ALL)")
    yield
    switch("public")
    with connection.cursor() as cursor:
        cursor.execute(f"DROP SCHEMA {', '.join(TENANTS)} CASCADE")


def everything(schema: str) -> list[Any]:
    switch(schema)
    return [list(model._base_manager.order_by("pk").values()) for model in (IdempotencyKey, IdempotencyStep, Order)]


@pytest.fixture
def theirs() -> Iterator[None]:
    """Tenant B has a leased key in progress, with a call and the id and the attempt of the next key of tenant A.

    The client's key is the same, too: both count their orders from 1.

    Nothing of it is different at the end of the test.
    """
    switch("tenant_b")
    store = store_for("default")
    with transaction.atomic():
        claimed = store.claim(a_claim(key="k", scope="b", lease=60.0))
        assert isinstance(claimed, Claimed)
        assert (claimed.id, claimed.attempt) == (1, 1)
        store.journal.start_call(claimed, "mirror", keyed=False)
    before = everything("tenant_b")
    switch("tenant_a")
    yield
    assert everything("tenant_b") == before


def lost(work: Callable[..., Any], error: type[Exception], **options: Any) -> None:
    switch("tenant_a")
    with pytest.raises(error, match="search_path, USE"):
        run_once(work, scope="a", key="k", operation="o", **options)


@pytest.mark.usefixtures("theirs")
def test_a_claim_does_not_end_in_another_schema() -> None:
    """Neither its result nor its writes are kept, and the key is free."""

    def strays() -> str:
        Order.objects.create(reference="of tenant a")
        switch("tenant_b")
        return "secret of tenant a"

    lost(strays, ClaimLost)
    assert everything("tenant_a") == [[], [], []]


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("end", ["complete", "release", "renew", "fail", "fence", "start_call", "start_write", "steps"])
def test_no_statement_of_a_claim_meets_the_row_of_another_tenant(end: str) -> None:
    """Each has the hashes of the identity, beside id and attempt."""
    store, wanted = store_for("default"), a_claim(key="k", scope="a", lease=60.0)
    with transaction.atomic():
        claimed = store.claim(wanted)
    assert isinstance(claimed, Claimed)
    switch("tenant_b")
    arguments: dict[str, tuple[Any, ...]] = {
        "complete": (SNAPSHOT,),
        "renew": (60.0,),
        "fail": (wanted, "it broke"),
        "start_write": ("order",),
    }
    options = {"keyed": False} if end == "start_call" else {}
    more = ("mail",) if end == "start_call" else arguments.get(end, ())
    with pytest.raises(ClaimLost), transaction.atomic():
        getattr(store if end in ("complete", "release") else store.journal, end)(claimed, *more, **options)


@pytest.mark.usefixtures("theirs")
def test_a_write_does_not_end_in_another_schema() -> None:
    """Its result would be a step of the other tenant's key, and the retry would write again."""

    def strays(operation: Operation) -> None:
        def write() -> None:
            Order.objects.create(reference="of tenant a")
            switch("tenant_b")

        operation.write("mirror", write)

    with pytest.raises(Exception, match="run right now"):  # a lost lease: the retry waits for the lease to end
        run_once(strays, scope="a", key="k", operation="o", lease=60)
    keys, steps, orders = everything("tenant_a")
    assert ([key["status"] for key in keys], steps, orders) == (["in_progress"], [], [])


@pytest.mark.usefixtures("theirs")
def test_a_step_in_another_schema_is_refused() -> None:
    """It is not recorded there, and nothing is called."""
    calls: list[int] = []

    def strays(operation: Operation) -> None:
        switch("tenant_b")
        try:
            with pytest.raises(LeaseLost):
                operation.call("charge", calls.append, 1)
        finally:
            switch("tenant_a")

    assert run_once(strays, scope="a", key="k", operation="o", lease=60).value is None
    assert (calls, everything("tenant_a")[1]) == ([], [])


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("command", ["cleanup_idempotency_keys", "recover_idempotency_keys"])
def test_a_command_says_which_schemas_it_has_not_looked_at(command: str, settings: Any) -> None:
    """And how to reach them. In the schema of a tenant, it was asked for that one."""
    said = (
        "Not looked at: the key tables in 2 other schemas (tenant_a, tenant_b). The command sees only one schema. With "
        f"django-tenants, run `manage.py all_tenants_command {command}`."
    )
    switch("public")
    for arguments in ((), ("--all-databases",)):
        assert said in spoken(command, *arguments)
    assert "Not looked at" not in spoken(command, "--verbosity=0")
    switch("tenant_a")
    assert "Not looked at" not in spoken(command)
    settings.PUBLIC_SCHEMA_NAME = "tenant_a"  # the one that all tenants share, for django-tenants
    assert "in 2 other schemas (public, tenant_b)." in spoken(command)
    del settings.PUBLIC_SCHEMA_NAME
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE tenant_b.{IdempotencyKey._meta.db_table} CASCADE")
        switch("public")
        assert "in 1 other schema (tenant_a)." in spoken(command)
        cursor.execute(f"DROP TABLE tenant_a.{IdempotencyKey._meta.db_table} CASCADE")
    assert "Not looked at" not in spoken(command)


def spoken(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out)
    return " ".join(out.getvalue().split())
