"""A schema for each tenant, by django-tenants itself, on a real server: the recipe of docs/databases.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest
from django.db import connection

pytest.importorskip("django_tenants")

from tests.servers import gunicorn, http_post

NAME = "test_idempotency_tenants"
TENANTS = ("acme", "globex")
TABLE = "django_idempotency_idempotencykey"
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.databases.clusters.tenants.settings", "SERVER_DATABASE": NAME}
pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture(scope="module", params=[{}, {"TENANT_LIMIT_SET_CALLS": "1"}], ids=["each cursor", "each switch"])
def server(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """django-tenants sets the search_path with each cursor, or with the first one after a switch."""
    with django_db_blocker.unblock():
        with connection._nodb_cursor() as cursor:  # type: ignore[attr-defined]
            cursor.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
            cursor.execute(f"CREATE DATABASE {NAME}")
        try:
            manage("migrate_schemas", "--verbosity", "0")
            manage("shell", "--verbosity", "0", "--command", MAKE_TENANTS)
            application = "django.core.wsgi:get_wsgi_application()"
            with gunicorn("--threads", "12", application=application, **ENVIRONMENT, **request.param) as url:
                yield url
        finally:
            with connection._nodb_cursor() as cursor:  # type: ignore[attr-defined]
                cursor.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


MAKE_TENANTS = f"""
from django.contrib.auth.models import User
from tests.databases.clusters.tenants.models import Domain, Tenant
for name in {TENANTS}:
    with Tenant.objects.create(schema_name=name) as tenant:
        Domain.objects.create(domain=name + ".example", tenant=tenant)
        User.objects.create_user("ann of " + name)
"""


def manage(*arguments: str) -> str:
    run = [sys.executable, "-m", "django", *arguments]
    done = subprocess.run(run, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def order(url: str, tenant: str, key: str, port: str = "", **headers: str) -> httpx.Response:
    headers = {"Idempotency-Key": key, "Host": f"{tenant}.example{port}", **headers}
    return http_post(f"{url}/orders/", headers=headers)


def sql(query: str) -> list[Any]:
    settings = connection.settings_dict
    login = {name: settings[name.upper()] or None for name in ("host", "port", "user", "password")}
    with psycopg.connect(dbname=NAME, autocommit=True, **login) as database:
        cursor = database.execute(query)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(autouse=True)
def _empty(server: str) -> Iterator[None]:
    yield
    for tenant in TENANTS:
        sql(f"TRUNCATE {tenant}.shopapp_order CASCADE")
        sql(f"TRUNCATE {tenant}.{TABLE}")


def test_tenants_with_one_key_share_nothing(server: str, key: str) -> None:
    """Six requests of each tenant at once, by users with one primary key. No tenant is in the other one's way."""
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda number: order(server, TENANTS[number % 2], key), range(12)))
    for number, tenant in enumerate(TENANTS):
        told = answers[number::2]
        assert {answer.status_code for answer in told} <= {201, 409}
        made = [answer for answer in told if answer.status_code == 201]
        assert Counter(answer.headers["Idempotency-Replayed"] for answer in made)["false"] == 1
        assert {answer.json()["tenant"] for answer in made} == {tenant}
        assert sql(f"SELECT reference FROM {tenant}.shopapp_order") == [(tenant,)]
        assert sql(f"SELECT scope FROM {tenant}.{TABLE}") == [(f"{number + 1}:user:auth.User:1",)]
        assert order(server, tenant, key).headers["Idempotency-Replayed"] == "true"
    assert sql(f"SELECT count(*) FROM public.{TABLE}") == [(0,)]


def test_a_view_may_visit_another_tenant(server: str, key: str) -> None:
    """django-tenants switches back when the next cursor is opened. So the completion opens one."""
    first, again = (order(server, "acme", key, **{"X-Visit": "globex"}) for _ in range(2))
    assert (first.status_code, again.content, again.headers["Idempotency-Replayed"]) == (201, first.content, "true")


def test_one_command_cleans_each_tenant_up(server: str, key: str) -> None:
    """The schemas of tenants and the shared one; not the copy of a schema."""
    for tenant in TENANTS:
        order(server, tenant, key)
        sql(f"UPDATE {tenant}.{TABLE} SET expires_at = now() - interval '1 hour'")
    sql(f"CREATE SCHEMA backup; CREATE TABLE backup.{TABLE} AS SELECT * FROM acme.{TABLE}")
    try:
        told = manage("cleanup_idempotency_keys", "--all-schemas")
        assert sql(f"SELECT count(*) FROM backup.{TABLE}") == [(1,)]
    finally:
        sql("DROP SCHEMA backup CASCADE")
    assert told == (
        "acme: Deleted 1 expired idempotency key.\nglobex: Deleted 1 expired idempotency key.\n"
        "public: Deleted 0 expired idempotency keys.\n"
    )
    assert [sql(f"SELECT count(*) FROM {tenant}.{TABLE}") for tenant in TENANTS] == [[(0,)], [(0,)]]


def test_in_its_schema_a_command_sees_the_tenant(server: str) -> None:
    """`reconcile` may ask for the tenant's settings. Afterwards, the connection is where it was."""
    script = """
from django.db import connection
from django_idempotency.management.schemas import in_schema
with in_schema(None, "acme"):
    print(type(connection.tenant).__name__, connection.tenant.schema_name)
with in_schema(None, "public"):
    print(connection.schema_name)
print(connection.schema_name)
"""
    assert manage("shell", "--verbosity", "0", "--command", script) == "Tenant acme\npublic\npublic\n"
