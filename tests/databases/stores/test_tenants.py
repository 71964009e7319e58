"""A schema for each tenant: work that leaves `search_path` on another tenant changes nothing of that tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection, connections, models, transaction
from django.http import HttpResponse
from django.test import override_settings

from django_idempotency import ClaimLost, LeaseLost, Operation, idempotent, run_once
from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from django_idempotency.engine.stores.states import Clock
from django_idempotency.management.schemas import all_schemas, in_schema
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.claims import a_claim
from tests.shopapp.models import Order
from tests.sql import ask

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
        "Not looked at: the key tables in 2 other schemas (tenant_a, tenant_b). Add --all-schemas, or --schema for "
        "some of them."
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


# --- commands for schemas


def charges(schema: str, *keys: str, unclear: bool = False) -> None:
    """Requests of this tenant whose worker has died after the charge."""
    switch(schema)
    for key in keys:
        create_key(key, scope=schema, operation=PAY, steps={"charge": key}, in_doubt=["mail"] if unclear else [])


PAY = "pay in a schema"
WHERE: list[str] = []


@idempotent(operation=PAY, lease=60, reconcile=lambda operation: finish(operation))
def pay(request: Any) -> Any:
    raise AssertionError("a recovery has no request")


def finish(operation: Operation) -> HttpResponse | None:
    """Where it is unclear what has happened, a person decides."""
    (schema,) = ask("SELECT current_schema()")
    WHERE.append(schema)
    if operation.in_doubt:
        return None
    operation.write("order", Order.objects.create, reference=operation.results["charge"])
    return HttpResponse(status=201)


@pytest.fixture
def unclear() -> None:
    """Tenant A has a key that nothing can settle, and tenant B three that can be."""
    WHERE.clear()
    charges("tenant_a", "u-1", unclear=True)
    charges("tenant_b", "p-1", "p-2", "p-3")
    switch("public")


def status(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command(*arguments, stdout=out, stderr=out)
    except CommandError as error:
        return error.returncode, out.getvalue()
    return 0, out.getvalue()


def references(schema: str) -> list[str]:
    return sorted(row["reference"] for row in everything(schema)[2])


@pytest.mark.usefixtures("unclear")
@pytest.mark.parametrize("chosen", [["--all-schemas"], ["--schema=tenant_a", "--schema=tenant_b"]])
def test_a_tenant_that_needs_a_person_does_not_keep_the_others_from_their_orders(chosen: list[str]) -> None:
    """The exit status is the worst one; each order is in its tenant's schema, once."""
    for _ in range(2):
        code, said = status("recover_idempotency_keys", "--older-than=0", *chosen)
        assert code == 3
    assert [references(schema) for schema in ("tenant_a", "tenant_b", "public")] == [[], ["p-1", "p-2", "p-3"], []]
    assert set(WHERE) == {"tenant_a", "tenant_b"}
    assert "tenant_b: Completed 0 idempotency keys. Need attention: 0." in said
    assert "Not looked at" not in said


@pytest.mark.usefixtures("unclear")
def test_a_schema_that_fails_ends_with_1_and_the_others_go_on() -> None:
    """A name without a key table is never the shared schema's."""
    code, said = status("recover_idempotency_keys", "--older-than=0", "--schema=tenant_x", "--schema=tenant_b")
    assert (code, "schema 'tenant_x' has no key table. Known are: public, tenant_a, tenant_b." in said) == (1, True)
    assert references("tenant_b") == ["p-1", "p-2", "p-3"]


@pytest.mark.usefixtures("unclear")
def test_a_new_connection_is_in_the_same_schema() -> None:
    """The database restarts in the middle of a command. Afterwards, the connection is where it was before."""
    with in_schema(None, "tenant_b"):
        connection.close()
        assert IdempotencyKey.objects.count() == 3
    assert ask("SELECT current_schema()") == ("public",)


@pytest.mark.usefixtures("unclear")
def test_one_schema_for_a_decision_and_for_forgetting() -> None:
    """The list is the tenant's, and so is what is decided."""
    code, said = status("resolve_idempotency_keys", "--schema=tenant_a")
    assert (code, PAY in said) == (0, True)
    assert status("resolve_idempotency_keys")[1].startswith("0 keys")
    decided = ("--release", "--calls-did-not-happen", "--by=ada", "--reason=t", "--apply")
    assert status("resolve_idempotency_keys", "--schema=tenant_a", "--state=in-doubt", *decided)[0] == 0
    assert [key["unknown"] for key in everything("tenant_a")[0]] == [0]
    switch("public")
    code, said = status("forget_idempotency_keys", "--scope=tenant_b", "--schema=tenant_b")
    assert (code, "Would forget 0 keys" in said) == (3, True)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_every_schema_of_every_database() -> None:
    """A cleanup of all."""
    for schema in TENANTS:
        switch(schema)
        create_key("old", scope="s", operation="o")
        IdempotencyKey.objects.update(expires_at=Clock(plus=-60))
    switch("public")
    code, said = status("cleanup_idempotency_keys", "--all-databases", "--all-schemas")
    assert code == 0
    deleted = [line for line in said.splitlines() if "Deleted 1 expired" in line]
    assert deleted == [f"default: {schema}: Deleted 1 expired idempotency key." for schema in TENANTS]


@pytest.fixture
def tenants() -> Iterator[None]:
    """django-tenants' own connection. Tenant A is one of its tenants; the schema of tenant B is somebody's copy."""
    backend = pytest.importorskip("django_tenants.postgresql_backend.base")

    class Tenant(models.Model):
        schema_name = models.CharField(max_length=63)

        class Meta:
            app_label = "shopapp"

        def __str__(self) -> str:
            return self.schema_name

    usual, own = connections["default"], backend.DatabaseWrapper({**connection.settings_dict}, "default")
    connections["default"] = own
    try:
        with override_settings(TENANT_MODEL="shopapp.Tenant"):
            with own.schema_editor() as editor:
                editor.create_model(Tenant)
            Tenant.objects.create(schema_name="tenant_a")
            yield
    finally:
        with own.cursor() as cursor:
            cursor.execute("DROP TABLE public.shopapp_tenant")
        own.close()
        connections["default"] = usual
        del apps.all_models["shopapp"]["tenant"]
        apps.clear_cache()


@pytest.mark.usefixtures("unclear", "tenants")
def test_with_django_tenants_the_schemas_are_those_of_tenants() -> None:
    """The keys of a copy are not continued: `reconcile` would finish them a second time."""
    assert all_schemas(None) == ["public", "tenant_a"]
    own: Any = connections["default"]
    with in_schema(None, "tenant_a"):
        assert (type(own.tenant).__name__, own.schema_name) == ("Tenant", "tenant_a")
        assert IdempotencyKey.objects.count() == 1
    with in_schema(None, "public"):
        assert IdempotencyKey.objects.count() == 0
    assert own.schema_name == "public"
    with pytest.raises(CommandError, match="schema 'tenant_b' has no key table"), in_schema(None, "tenant_b"):
        pass
