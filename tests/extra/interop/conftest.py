from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from django_idempotency.models import IdempotencyKey
from tests.servers import gunicorn
from tests.shopapp.models import Ledger, Order

WORKERS = ("--workers", "2", "--threads", "4", "--keep-alive", "60")
"""Two, so that one is there while the other is killed. Threads, because gunicorn keeps connections open only then."""


@pytest.fixture(scope="module")
def server(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with django_db_blocker.unblock(), serving(1) as (url,):
        yield url


@pytest.fixture(scope="module")
def servers(django_db_setup: None, django_db_blocker: Any) -> Iterator[list[str]]:
    """Two, on one database."""
    with django_db_blocker.unblock(), serving(2) as urls:
        yield urls


@contextmanager
def serving(number: int) -> Iterator[list[str]]:
    """So many gunicorns; gives their URLs."""
    with ExitStack() as stack:
        settings = {"DJANGO_SETTINGS_MODULE": "tests.extra.interop.settings"}
        yield [stack.enter_context(gunicorn(*WORKERS, **settings)) for _ in range(number)]
    # A request whose client gave up can end later than its test.
    Order.objects.all().delete()
    Ledger.objects.all().delete()
    IdempotencyKey.objects.all().delete()
