"""The system checks, by their ids."""

from __future__ import annotations

import sys
import types
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.checks import run_checks
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.views.decorators.http import require_http_methods

from django_idempotency import idempotent
from django_idempotency.checks import check_databases, check_settings, check_urls
from django_idempotency.engine import stores
from tests.views import answers


def ids(messages: Any) -> list[str]:
    return [message.id.removeprefix("django_idempotency.") for message in messages]


@pytest.mark.django_db
def test_a_good_project_has_nothing_to_mend() -> None:
    """The tests' own settings."""
    assert run_checks() == []
    assert [*check_databases(["default"])] == []


def test_the_checks_of_a_command_do_not_connect() -> None:
    """A worker that forks, such as huey's, would share the connection with its children. No test database here."""
    stores._store.cache_clear()
    assert run_checks() == []


@pytest.mark.django_db
def test_a_command_that_names_databases_asks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check --database default`, and `migrate`."""
    monkeypatch.setattr(stores, "_STORES", {})
    stores._store.cache_clear()
    found = ids(run_checks(databases=["default"]))
    stores._store.cache_clear()
    assert found == ["E004"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"TTTL": 1}, "unknown IDEMPOTENCY setting 'TTTL'. Did you mean 'TTL'?"),
        ({"PAUSED": "yes"}, "IDEMPOTENCY['PAUSED']='yes' cannot be imported"),
        ({"PAUSED": 1}, "IDEMPOTENCY['PAUSED']=1: must be True, False, a callable() -> bool"),
        # Without the key itself, which a build log would keep.
        (
            {"ENCRYPTION_KEYS": ["s3cret"]},
            "IDEMPOTENCY['ENCRYPTION_KEYS']: entry 1 is not a Fernet key. Generate one with",
        ),
    ],
)
def test_e001_the_setting(settings: Any, setting: dict[str, Any], message: str) -> None:
    """One message for one mistake: the other checks are silent."""
    settings.IDEMPOTENCY = setting
    (found,) = run_checks(databases=["default"])
    assert found.id == "django_idempotency.E001"
    assert found.msg.startswith(message)
    assert "s3cret" not in str(found)


def test_e002_an_unknown_alias(settings: Any) -> None:
    """Of the project's default."""
    settings.IDEMPOTENCY = {"USING": "nowhere"}
    (message,) = check_settings()
    assert (message.id, message.hint) == ("django_idempotency.E002", "Known are: default, other.")


@pytest.mark.urls("tests.view_urls")
def test_e003_a_router_keeps_the_table_away(settings: Any) -> None:
    """For the default and for an alias that a view names."""
    settings.DATABASE_ROUTERS = ["tests.routers.NoKeys"]
    assert ids(check_settings()) == ["E003"] * 2


@pytest.mark.django_db
def test_e004_a_database_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by `check --database`."""
    monkeypatch.setattr(stores, "_STORES", {})
    stores._store.cache_clear()
    (message,) = check_databases(["default"])
    stores._store.cache_clear()
    assert message.id == "django_idempotency.E004"


@pytest.mark.parametrize(
    ("vendor", "name"),
    [("cockroachdb", "CockroachDB"), ("yugabyte", "YugabyteDB"), ("oracle", "Oracle"), ("microsoft", "SQL Server")],
)
def test_e004_an_engine_without_a_store(monkeypatch: pytest.MonkeyPatch, vendor: str, name: str) -> None:
    """Told by each `check`, from the engine's own names: no connection is opened, and `--database` is silent."""
    monkeypatch.setitem(connections["default"].__dict__, "vendor", vendor)
    monkeypatch.setitem(connections["default"].__dict__, "display_name", name)
    stores._store.cache_clear()
    found = [*check_settings(), *check_databases(["default"])]
    stores._store.cache_clear()
    assert ids(found) == ["E004"]
    assert found[0].msg.startswith(f"database 'default' is {name} (ENGINE ")


@pytest.mark.django_db
@pytest.mark.only_on("mysql")
@pytest.mark.parametrize(
    ("version", "name"), [("8.0.11-TiDB-v8.5.0", "TiDB"), ("8.0.30-Vitess", "Vitess"), ("9.7.4-2", None)]
)
def test_e004_a_database_that_speaks_mysqls_protocol(
    monkeypatch: pytest.MonkeyPatch, version: str, name: str | None
) -> None:
    """It says in its version who it is."""
    monkeypatch.setitem(connections["default"].__dict__, "mysql_server_info", version)
    monkeypatch.setitem(connections["default"].__dict__, "mysql_is_mariadb", False)
    monkeypatch.setitem(connections["default"].__dict__, "display_name", "MySQL")
    stores._store.cache_clear()
    messages = [*check_databases(["default"])]
    stores._store.cache_clear()
    assert [message.msg for message in messages if message.id == "django_idempotency.E004"] == [
        f"database 'default' is {name} (ENGINE 'django.db.backends.mysql'), for which django-idempotency has no "
        "store. Use PostgreSQL, MySQL, MariaDB or SQLite."
        for _ in range(name is not None)
    ]


@pytest.mark.parametrize(
    ("vendor", "changes", "expected"),
    [
        (None, {"AUTOCOMMIT": False}, ["E005"]),
        ("sqlite", {"OPTIONS": {}}, ["W001"]),
        ("sqlite", {"OPTIONS": {"transaction_mode": "deferred"}}, ["W001"]),
        ("sqlite", {"OPTIONS": {"transaction_mode": None}}, ["W001"]),
        ("sqlite", {"OPTIONS": {"transaction_mode": "exclusive"}}, []),
        ("postgresql", {"OPTIONS": {"isolation_level": 3}}, ["W002"]),
        ("mysql", {"OPTIONS": {"isolation_level": "REPEATABLE READ"}}, ["W002"]),
        ("mysql", {"OPTIONS": {"isolation_level": None}}, ["W002"]),
        ("mysql", {"OPTIONS": {}, "zone": "Asia/Shanghai"}, ["W004"]),
        ("mysql", {"OPTIONS": {}, "zone": "UTC"}, []),
        ("postgresql", {"OPTIONS": {}, "zone": "Asia/Shanghai"}, []),  # its times know their zone
    ],
)
def test_settings_of_the_database(
    monkeypatch: pytest.MonkeyPatch, vendor: str | None, changes: dict[str, Any], expected: list[str]
) -> None:
    """Each with its id."""
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)
    changes = dict(changes)
    monkeypatch.setattr(connection, "timezone_name", changes.pop("zone", "UTC"))
    for name, value in changes.items():
        monkeypatch.setitem(connection.settings_dict, name, value)
    assert ids(check_settings()) == expected
    costs = [message.msg for message in check_settings() if message.id == "django_idempotency.W002"]
    assert all("error 40001" in cost and "waits for innodb_lock_wait_timeout" in cost for cost in costs)


@pytest.mark.urls("tests.callers.placement_urls")
def test_e006_dispatch_above_an_access_mixin() -> None:
    """Found through the URLs; the right order is left alone."""
    (message,) = check_urls()
    assert message.id == "django_idempotency.E006"
    assert "dispatch of Above" in message.msg


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"lease": 60}, False),
        ({"lease": 60, "ttl": timedelta(days=7)}, False),
        ({"lease": 60, "ttl": 604_799}, True),
        ({"lease": 60, "ttl": 604_799, "late_keys": "refuse"}, False),
        ({"ttl": 60}, False),
    ],
)
def test_w009_a_leased_key_that_gateways_outlive(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], warned: bool
) -> None:
    """One payment could buy two orders, unless late keys are refused."""
    views = types.ModuleType("views")
    views.urlpatterns = [path("pay", idempotent(operation="pay", **options)(not_called))]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "views_of_this_test", views)
    with override_settings(ROOT_URLCONF="views_of_this_test"):
        messages = [(message.id, message.msg, message.hint) for message in check_urls()]
    assert (
        messages
        == [
            (
                "django_idempotency.W009",
                "tests.operators.test_checks.not_called: ttl=604799 with a lease. After ttl the same key runs again, "
                "a gateway that still knows its derived key answers with the first charge, and one payment buys two "
                "orders.",
                'Leave ttl out, which means 35 days, or pass late_keys="refuse".',
            )
        ]
        * warned
    )


def not_called(request: HttpRequest) -> HttpResponse:
    raise AssertionError


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"on_abandoned": "hold"}, ["E007"]),
        ({"lease": 3_024_000}, ["E007"]),
        ({"lease": 60, "in_progress_status": 202}, ["E008"]),
        ({"lease": 60, "on_abandoned": "hold"}, []),
    ],
)
def test_e007_and_e008_options_of_a_route(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: list[str]
) -> None:
    """Options that contradict each other, and 202 without a status page."""
    views = types.ModuleType("views")
    view = idempotent(operation="pay", **options)(lambda request: HttpResponse())
    views.urlpatterns = [path("pay", view)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "views_of_this_test", views)
    with override_settings(ROOT_URLCONF="views_of_this_test"):
        messages = [*check_urls()]
        assert ids(messages) == expected
        assert [*check_settings()] == []
    if expected == ["E007"]:
        assert messages[0].msg.startswith(f"{__name__}.test_e007_and_e008")


@pytest.mark.parametrize("engine", ["django_tenants.postgresql_backend", "tenant_schemas.postgresql_backend", None])
def test_e013_a_schema_for_each_tenant_needs_a_scope(
    monkeypatch: pytest.MonkeyPatch, settings: Any, engine: str | None
) -> None:
    """Users of two tenants have one primary key. A project may have an engine of its own: then the app tells."""
    if engine is None:
        apps = [*django_settings.INSTALLED_APPS, "django_pgschemas.apps.Config"]
        monkeypatch.setattr(django_settings, "INSTALLED_APPS", apps)
    else:
        monkeypatch.setitem(connections.settings["default"], "ENGINE", engine)
    (message,) = check_settings()
    assert message.id == "django_idempotency.E013"
    name = "django_pgschemas" if engine is None else engine.partition(".")[0]
    assert message.msg.startswith(f"{name} keeps each tenant's users in a separate schema")
    settings.IDEMPOTENCY = {"SCOPE": lambda request: f"{request.tenant.pk}:{request.user.pk}"}
    assert [*check_settings()] == []


def test_without_urls_there_is_nothing_to_check(settings: Any) -> None:
    """A project without ROOT_URLCONF, such as a worker's."""
    settings.ROOT_URLCONF = None
    assert [*check_urls()] == []


def test_e017_a_decorator_that_applies_to_no_method() -> None:
    """The method has to be named; a view that also answers another method may have it unprotected."""
    right = [idempotent(methods=("PUT",))(answers()), idempotent(answers())]
    views = [require_http_methods(["PUT"])(view) for view in (idempotent(operation="pay")(answers()), right[0])]
    views.append(require_http_methods(["PUT", "POST"])(right[1]))
    urls = types.ModuleType("urls_of_this_test")
    for view in views:
        urls.urlpatterns = [path("pay", view)]  # type: ignore[attr-defined]
        with override_settings(ROOT_URLCONF=urls):
            assert ids(check_urls()) == (["E017"] if view is views[0] else [])
