"""Wrong set-ups that only a request shows: the error says what to type. What code and settings show is in
test_checks.py, ../callers/test_placement.py, ../unit/test_options.py and ../frameworks/ninja/test_decorators.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, modify_settings

import django_idempotency
from django_idempotency import idempotent, run_once
from django_idempotency.exceptions import IdempotencyConfigurationError
from tests.heard import heard
from tests.sql import NO_TABLE, TABLE, instead

PACKAGE = Path(django_idempotency.__file__).parent
OLDER_TABLE = (
    f"ALTER TABLE {TABLE} RENAME COLUMN locked_until TO elsewhere",
    f"ALTER TABLE {TABLE} RENAME COLUMN elsewhere TO locked_until",
)


def never_runs(request: HttpRequest) -> HttpResponse:
    raise AssertionError("not protected, and run all the same")


def send(**options: Any) -> Any:
    return idempotent(scope=lambda request: "s", **options)(never_runs)(
        RequestFactory().post("/", headers={"Idempotency-Key": "k"})
    )


class TestNotMigrated:
    @pytest.fixture(params=[NO_TABLE, OLDER_TABLE], ids=["no table", "an older table"])
    def unmigrated(self, request: Any, transactional_db: None) -> Iterator[None]:
        """Without the key table, or with that of an earlier release."""
        with instead(*request.param):
            yield

    @pytest.mark.parametrize(
        "use",
        [
            send,
            lambda: send(lease=60),
            lambda: send(wait=1),
            lambda: run_once(print, operation="print", scope="s", key="k"),
        ],
        ids=["atomic", "leased", "waiting", "run_once"],
    )
    def test_the_first_use_says_what_to_run(self, unmigrated: None, use: Callable[[], Any]) -> None:
        """And the view has not run."""
        with pytest.raises(IdempotencyConfigurationError) as caught:
            use()
        assert str(caught.value) == (
            f"database 'default' has no up-to-date table '{TABLE}'. Run: python manage.py migrate. "
            "If that has nothing to apply, the table is from 0.3.0: upgrade it as docs/upgrading.md shows. Dropping it "
            "would run its keys again."
        )

    def test_it_is_told_with_its_database(self, unmigrated: None) -> None:
        with heard() as told, pytest.raises(IdempotencyConfigurationError):
            send()
        (error,) = told
        assert (error["event"], error["using"], error["identity"].key) == ("error", "default", "k")
        assert error["reason"].startswith("django.db.utils.")

    def test_a_router_that_keeps_the_table_out_is_named(self, unmigrated: None, settings: Any) -> None:
        """To migrate would not help."""
        settings.DATABASE_ROUTERS = ["tests.routers.NoKeys"]
        with pytest.raises(IdempotencyConfigurationError, match=r"DATABASE_ROUTERS keep it out: let allow_migrate\(\)"):
            send()

    def test_an_error_of_the_views_own_is_left_alone(self, transactional_db: None) -> None:
        """Its missing tables are its own business."""
        from django.db import DatabaseError

        @idempotent(scope=lambda request: "s")
        def broken(request: HttpRequest) -> HttpResponse:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM nowhere")
            return HttpResponse()

        with pytest.raises(DatabaseError, match="nowhere"):
            broken(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_another_database_without_an_up_to_date_table_is_named(settings: Any) -> None:
    """A router that lets the table in there is not blamed."""
    settings.DATABASE_ROUTERS = ["tests.routers.KeysOnOther"]
    older, usual = OLDER_TABLE
    message = r"^database 'other' has no up-to-date table '\w+'\. Run: python manage\.py migrate --database other\. "
    with connections["other"].cursor() as cursor:
        cursor.execute(older)
        try:
            with pytest.raises(IdempotencyConfigurationError, match=message):
                send(using="other")
        finally:
            cursor.execute(usual)


@pytest.mark.parametrize("use", [send, lambda **o: run_once(print, operation="print", scope="s", key="k", **o)])
def test_an_unknown_alias_is_named(use: Callable[..., Any]) -> None:
    """Also where no user has run the checks."""
    with pytest.raises(IdempotencyConfigurationError) as caught:
        use(using="orders")
    assert str(caught.value) == (
        "idempotency keys should be kept in database 'orders', which does not exist. Known are: default, other. "
        "Correct the option `using`, or the db_for_write() of DATABASE_ROUTERS."
    )


@modify_settings(INSTALLED_APPS={"remove": ["django_idempotency"]})
def test_an_app_that_is_not_installed() -> None:
    """Whatever is imported first, the models are needed."""
    loader = SourceFileLoader("django_idempotency.models_again", str(PACKAGE / "models.py"))
    module = module_from_spec(spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    with pytest.raises(IdempotencyConfigurationError, match=r'INSTALLED_APPS = \[\.\.\., "django_idempotency"\]'):
        loader.exec_module(module)


@pytest.mark.django_db
def test_nothing_is_imported_that_is_not_used() -> None:
    """A plain project on SQLite gets no framework, no driver, no metrics and no admin with the decorator."""
    script = """
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_idempotency"], ROOT_URLCONF="none", SECRET_KEY="s",
                   DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
from django.core.management import call_command
from django.test import RequestFactory
from django_idempotency import idempotent
call_command("migrate", verbosity=0)
from django.http import HttpResponse
def answer(request):
    return HttpResponse(status=201)
view = idempotent(operation="o")(answer)
view(RequestFactory().post("/", headers={"Idempotency-Key": "k"}, content_type="application/json"))
unwanted = ("rest_framework", "drf_spectacular", "ninja", "prometheus_client", "redis", "boto3", "psycopg", "MySQLdb",
            "opentelemetry", "django.contrib.admin", "django_idempotency.admin", "django_idempotency.testing",
            "graphql", "django_idempotency.rest_framework", "django_idempotency.ninja", "django_idempotency.metrics")
print([name for name in unwanted if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr
