"""The system checks, by their ids. What they say about CORS is in test_checks_cors.py."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path

from django_idempotency import checks, idempotent
from django_idempotency.checks import check_databases, check_settings, check_urls


class TestChecks:
    def ids(self, messages: Any) -> list[str]:
        return [message.id for message in messages]

    @pytest.mark.django_db
    def test_a_good_project_has_nothing_to_mend(self) -> None:
        """The tests' own settings."""
        assert run_checks() == []
        assert check_databases(None, databases=["default"]) == []

    def test_each_id_is_listed(self) -> None:
        """In the docstring of the module, no more and no fewer than the code has."""
        code = "".join(module.read_text() for module in Path(checks.__file__).parent.rglob("*.py"))
        used = set(re.findall(r"django_idempotency\.([EW]\d{3})\b", code))
        assert "W004" in used
        assert set(re.findall(r"\b[EW]\d{3}\b", checks.__doc__ or "")) == used

    def test_e001_the_setting(self, settings: Any) -> None:
        """An unknown name."""
        settings.IDEMPOTENCY = {"TTTL": 1}
        (message,) = check_settings(None)
        assert message.id == "django_idempotency.E001"
        assert message.msg.startswith("unknown IDEMPOTENCY setting 'TTTL'. Did you mean 'TTL'?")
        assert check_databases(None, databases=["default"]) == []

    def test_e001_a_bad_key_of_encryption(self, settings: Any) -> None:
        """Without the key itself, which a build log would keep."""
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": ["s3cret"]}
        (message,) = check_settings(None)
        assert message.id == "django_idempotency.E001"
        assert message.msg.startswith("IDEMPOTENCY['ENCRYPTION_KEYS']: entry 1 is no Fernet key. Make one with: python")
        assert "s3cret" not in str(message)

    def test_e002_an_unknown_alias(self, settings: Any) -> None:
        """Of the project's default."""
        settings.IDEMPOTENCY = {"USING": "nowhere"}
        (message,) = check_settings(None)
        assert (message.id, message.hint) == ("django_idempotency.E002", "Known are: default, other.")

    @pytest.mark.urls("tests.integration.view_urls")
    def test_e003_a_router_keeps_the_table_away(self, settings: Any) -> None:
        """For the default and for an alias that a view names."""
        settings.DATABASE_ROUTERS = ["tests.routers.NoKeys"]
        assert self.ids(check_settings(None)) == ["django_idempotency.E003"] * 2

    @pytest.mark.django_db
    def test_e004_a_database_without_a_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Told by `check --database`."""
        from django_idempotency.engine import stores

        monkeypatch.setattr(stores, "_STORES", {})
        stores.store_for.cache_clear()
        (message,) = check_databases(None, databases=["default"])
        stores.store_for.cache_clear()
        assert message.id == "django_idempotency.E004"
        assert "Use PostgreSQL, MySQL, MariaDB or SQLite." in message.msg

    @pytest.mark.django_db
    @pytest.mark.only_on("mysql")
    @pytest.mark.parametrize(
        ("version", "name"), [("8.0.11-TiDB-v8.5.0", "TiDB"), ("8.0.30-Vitess", "Vitess"), ("9.7.4-2", None)]
    )
    def test_e004_a_database_that_speaks_mysqls_protocol(
        self, monkeypatch: pytest.MonkeyPatch, version: str, name: str | None
    ) -> None:
        """It says in its version who it is."""
        from django.db import connections

        from django_idempotency.engine import stores

        monkeypatch.setitem(connections["default"].__dict__, "mysql_server_info", version)
        monkeypatch.setitem(connections["default"].__dict__, "mysql_is_mariadb", False)
        stores.store_for.cache_clear()
        messages = check_databases(None, databases=["default"])
        stores.store_for.cache_clear()
        assert [message.msg for message in messages] == [
            f"database 'default' is {name} (ENGINE 'django.db.backends.mysql'), for which django-idempotency has no "
            "store. Use PostgreSQL, MySQL, MariaDB or SQLite."
            for _ in range(name is not None)
        ]

    @pytest.mark.parametrize(
        ("vendor", "changes", "id_"),
        [
            (None, {"AUTOCOMMIT": False}, "E005"),
            ("sqlite", {"OPTIONS": {}}, "W001"),
            ("sqlite", {"OPTIONS": {"transaction_mode": "deferred"}}, "W001"),
            ("postgresql", {"OPTIONS": {"isolation_level": 3}}, "W002"),
            ("mysql", {"OPTIONS": {"isolation_level": "REPEATABLE READ"}}, "W002"),
            ("mysql", {"OPTIONS": {"isolation_level": None}}, "W002"),
        ],
    )
    def test_settings_of_the_database(
        self, monkeypatch: pytest.MonkeyPatch, vendor: str | None, changes: dict[str, Any], id_: str
    ) -> None:
        """Each with its id."""
        from django.db import connection

        if vendor is not None:
            monkeypatch.setattr(connection, "vendor", vendor)
        for name, value in changes.items():
            monkeypatch.setitem(connection.settings_dict, name, value)
        assert self.ids(check_settings(None)) == [f"django_idempotency.{id_}"]

    @pytest.mark.parametrize(
        ("vendor", "zone", "ids"),
        [
            ("mysql", "Asia/Shanghai", ["django_idempotency.W004"]),
            ("mysql", "UTC", []),
            ("postgresql", "Asia/Shanghai", []),
        ],
    )
    def test_w004_times_that_django_takes_for_local_ones(
        self, monkeypatch: pytest.MonkeyPatch, vendor: str, zone: str, ids: list[str]
    ) -> None:
        """PostgreSQL's times know their zone."""
        from django.db import connection

        monkeypatch.setattr(connection, "vendor", vendor)
        monkeypatch.setattr(connection, "timezone_name", zone)
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
        assert self.ids(check_settings(None)) == ids

    @pytest.mark.parametrize("options", [{"transaction_mode": "IMMEDIATE"}, {"transaction_mode": "exclusive"}])
    def test_sqlite_with_immediate_transactions_is_fine(
        self, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
    ) -> None:
        """Either mode takes the write lock at BEGIN."""
        from django.db import connection

        monkeypatch.setattr(connection, "vendor", "sqlite")
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
        assert check_settings(None) == []

    @pytest.mark.urls("tests.integration.placement_urls")
    def test_e006_dispatch_above_an_access_mixin(self) -> None:
        """Found through the URLs; the right order is left alone."""
        (message,) = check_urls(None)
        assert message.id == "django_idempotency.E006"
        assert "dispatch of Above" in message.msg

    @pytest.mark.parametrize(
        ("options", "ids"),
        [
            ({"on_abandoned": "hold"}, ["E007"]),
            ({"lease": 172_800}, ["E007"]),
            ({"lease": 60, "in_progress_status": 202}, ["E008"]),
            ({"lease": 60, "on_abandoned": "hold"}, []),
        ],
    )
    def test_e007_and_e008_options_of_a_route(
        self, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], ids: list[str]
    ) -> None:
        """Options that contradict each other, and 202 without a status page."""
        views = types.ModuleType("views")
        views.urlpatterns = [path("pay", idempotent(**options)(lambda request: HttpResponse()))]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "views_of_this_test", views)
        with override_settings(ROOT_URLCONF="views_of_this_test"):
            messages = check_urls(None)
            assert self.ids(messages) == [f"django_idempotency.{name}" for name in ids]
            assert self.ids(check_settings(None)) == []
        if ids == ["E007"]:
            assert messages[0].msg.startswith(f"{__name__}.TestChecks.test_e007_and_e008")

    @pytest.mark.parametrize("engine", ["django_tenants.postgresql_backend", "tenant_schemas.postgresql_backend"])
    def test_e013_a_schema_for_each_tenant_needs_a_scope(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any, engine: str
    ) -> None:
        """Users of two tenants have one primary key. A callable that names the tenant is enough."""
        from django.db import connections

        monkeypatch.setitem(connections.settings["default"], "ENGINE", engine)
        (message,) = check_settings(None)
        assert message.id == "django_idempotency.E013"
        assert message.msg.startswith(f"{engine.partition('.')[0]} keeps the users of each tenant in a schema")
        settings.IDEMPOTENCY = {"SCOPE": lambda request: f"{request.tenant.pk}:{request.user.pk}"}
        assert check_settings(None) == []

    def test_e013_by_the_installed_app(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A project may have a database engine of its own."""
        from django.conf import settings

        monkeypatch.setattr(settings, "INSTALLED_APPS", [*settings.INSTALLED_APPS, "django_pgschemas.apps.Config"])
        assert self.ids(check_settings(None)) == ["django_idempotency.E013"]

    def test_without_urls_there_is_nothing_to_check(self, settings: Any) -> None:
        """A project without ROOT_URLCONF, such as a worker's."""
        settings.ROOT_URLCONF = None
        assert check_urls(None) == []
