from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest
from django.test import Client, override_settings

from tests.acceptance.pages import ROOT, blocks
from tests.at_hand import embedded_postgresql
from tests.servers import PAUSE, fake_gateway, serving
from tests.shopapp import models

SHOP = Path(__file__).resolve().parents[2] / "testproject"
SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw=="


@pytest.fixture(autouse=True)
def _own_reconciles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page has a project of its own: recovery does not ask the `reconcile` of another page's operation."""
    monkeypatch.setattr("django_idempotency.engine.declare.registry._registered", {})


@dataclass(frozen=True)
class RunningShop:
    """The shop on gunicorn, a look into its database, and the books of its payment gateway."""

    url: str
    port: int
    dsn: str
    gateway: httpx.Client

    def one(self, sql: str, *params: Any) -> Any:
        with psycopg.connect(self.dsn, autocommit=True) as database:
            row = database.execute(sql, params).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]

    @contextmanager
    def holding(self) -> Iterator[Callable[[], None]]:
        """Hold views that ask for it in the middle of their work (`X-Demo-Pause`); gives what lets them go."""
        with psycopg.connect(self.dsn, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", [PAUSE])
            yield holder.close

    def held(self) -> bool:
        return bool(
            self.one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted", PAUSE)
        )


@pytest.fixture(scope="session")
def shop() -> Iterator[RunningShop]:
    """The shop on gunicorn, one for all tests: it takes seconds to start. Each test has items of its own."""
    pytest.importorskip("rest_framework")
    pytest.importorskip("drf_spectacular")
    with fake_gateway() as gateway:
        yield from running_shop(gateway)


def running_shop(gateway: httpx.Client) -> Iterator[RunningShop]:
    url = embedded_postgresql()
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONPATH": str(SHOP.parent),
        "WEBHOOK_SECRET": SECRET,
        "GATEWAY_URL": str(gateway.base_url).rstrip("/"),
        "GATEWAY_TIMEOUT": "2",
        "DEMO": "1",
    }
    migrate = [sys.executable, str(SHOP / "manage.py"), "migrate", "--verbosity", "0"]
    subprocess.run(migrate, env=environment, check=True, timeout=60)
    command = ("gunicorn", "config.wsgi", "--bind", "fd://{fd}", "--workers", "4", "--chdir", str(SHOP))
    with serving(*command, env=environment, path="/orders/") as address:
        yield RunningShop(address, int(address.rpartition(":")[2]), url, gateway)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Execute a block of a page, or a file of docs/, as a module of a project whose shop is the tests' one."""
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.models", models)

    def execute(page: str, name: str = "", **given: Any) -> SimpleNamespace:
        module = ModuleType("documented")
        monkeypatch.setitem(sys.modules, "documented", module)
        vars(module).update(given)
        source = blocks(page)[name] if name else (ROOT / page).read_text()
        exec(compile(source, f"{page}:{name}", "exec"), vars(module))
        return SimpleNamespace(**vars(module))

    return execute


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make these routes the project's; give a function that posts twice under one key."""
    with override_settings(ROOT_URLCONF="documented_urls"):

        def routes(*urlpatterns: Any) -> Any:
            module = ModuleType("documented_urls")
            module.urlpatterns = list(urlpatterns)  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "documented_urls", module)
            return twice

        yield routes


def twice(client: Client, url: str, data: dict[str, Any], **kwargs: Any) -> None:
    first, again = (client.post(url, data, headers={"Idempotency-Key": '"one"'}, **kwargs) for _ in range(2))
    assert (first.status_code, first["Idempotency-Replayed"]) == (201, "false")
    assert (again.status_code, again["Idempotency-Replayed"]) == (201, "true")
    assert first.content == again.content
    assert models.Order.objects.count() == 1


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A gateway that honours keys; `down` makes it charge and not answer."""
    books: dict[str, Any] = {}
    gateway: Any = ModuleType("shop.gateway")
    gateway.books, gateway.down = books, False

    def charge(amount: int, *, idempotency_key: str = "", reference: str = "", metadata: Any = None) -> Any:
        key = idempotency_key or reference
        books.setdefault(key, {"id": f"ch_{len(books) + 1}"})
        if gateway.down:
            raise TimeoutError
        return books[key]

    gateway.charge, gateway.find = charge, books.get
    monkeypatch.setitem(sys.modules, "shop.gateway", gateway)
    return gateway
