"""Prometheus metrics. The package itself never imports this module. `pip install prometheus-client`, then

    class ShopConfig(AppConfig):
        def ready(self):
            from django_idempotency import metrics

            metrics.install()

Counters count what this process does; `KeyCollector` asks the database at every scrape, by its partial indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from importlib.util import find_spec
from typing import Any

if find_spec("prometheus_client") is None:
    raise ModuleNotFoundError(
        "django_idempotency.metrics needs prometheus-client, which is not installed. "
        "Run: pip install prometheus-client",
        name="prometheus_client",
    )

from django.db import DatabaseError, connections
from django.db.models import Count, Max, Min
from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from .engine.stores import alias_for
from .maintenance import running_transactions
from .maintenance.lookups import database_clock, expired, half_done, in_doubt, stuck
from .models import IdempotencyKey
from .signals import key_event

__all__ = ["KeyCollector", "install"]

GAUGES = {
    "in_flight": "Keys under a lease, alive or stuck.",
    "oldest_in_flight_seconds": "Seconds since the oldest key under a lease was first claimed; 0 if there is none.",
    "atomic_in_flight": "PostgreSQL only: open transactions that hold keys of atomic mode, or have written the key "
    "table under an advisory lock of yours.",
    "oldest_atomic_in_flight_seconds": "PostgreSQL only: seconds since the oldest of them began; 0 if there is none. "
    "Missing if your role may not know: use the role of the application, or a member of pg_read_all_stats.",
    "stuck": "Keys in progress that no worker holds: it died, is too slow, or ended its own transaction.",
    "in_doubt": "Failed or stuck keys with a step of unknown outcome.",
    "half_done": "Failed or stuck keys with a finished external call: the operation did not end.",
    "cleanup_lag_seconds": "Seconds since the oldest key that cleanup would delete expired; 0 if there is none.",
}
logger = logging.getLogger("django_idempotency")


class KeyCollector:
    """Gauges of what the key tables hold now. Runs up to six short queries per database at each scrape.

    Args:
        using: database aliases; default: the write alias of the key table.
    """

    def __init__(self, *using: str) -> None:
        self.using = using

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The names only, so that registering asks no database."""
        return _families().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges. A database that does not answer has none in this scrape; other databases and counters have."""
        families = _families()
        for alias in self.using or (alias_for(None),):
            try:
                values = _measured(alias)
            except DatabaseError:
                logger.exception("The idempotency keys of %s could not be counted for Prometheus.", alias)
                continue
            for name, value in values.items():
                families[name].add_metric([alias], value)
        return families.values()


def install(*using: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Count every outcome from now on, and register a `KeyCollector`. Call it once per process and registry.

    Asks no database.

    Args:
        using: database aliases; default: the write alias of the key table.
        registry: where the metrics are registered.

    Raises:
        ValueError: if the metrics are installed in this registry already.
    """
    outcomes = Counter("idempotency_key_outcomes", "What came of keys.", ("operation", "outcome"), registry=registry)
    purged = Counter("idempotency_keys_purged", "Expired keys deleted.", ("database",), registry=registry)
    registry.register(KeyCollector(*using))

    def count(event: str, using: str, identity: Any, cleanup: Any, **kwargs: Any) -> None:
        if cleanup is None:
            outcomes.labels(identity.operation, event).inc()
        else:
            purged.labels(using).inc(cleanup.deleted)

    key_event.connect(count, weak=False)


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(f"idempotency_keys_{name}", text, labels=["database"]) for name, text in GAUGES.items()
    }


def _measured(alias: str) -> dict[str, float]:
    connection = connections[alias]
    opened_here = connection.connection is None
    try:
        return _values(alias)
    finally:
        if opened_here:  # `start_http_server` scrapes in threads of its own, where no end of a request closes it
            connection.close()


def _values(alias: str) -> dict[str, float]:
    keys, now = IdempotencyKey.objects.using(alias), database_clock(alias)
    leased = keys.filter(locked_until__isnull=False)
    found = leased.aggregate(count=Count("pk"), oldest=Min("created_at"), now=Max(now))
    due = keys.filter(expired(alias)).order_by("expires_at").values_list("expires_at", now).first()
    return {
        "in_flight": found["count"],
        "oldest_in_flight_seconds": _seconds(found["oldest"], found["now"]),
        "stuck": stuck(using=alias).count(),
        "in_doubt": in_doubt(using=alias).count(),
        "half_done": half_done(using=alias).count(),
        "cleanup_lag_seconds": _seconds(*(due or (None, None))),
        **_atomic(alias),
    }


def _atomic(alias: str) -> dict[str, float]:
    """What is known of atomic mode at work. A value that is not known is left out: 0 would be a lie."""
    running = running_transactions(using=alias)
    if running is None:
        return {}
    ages = [transaction.seconds for transaction in running if transaction.seconds is not None]
    known = {"oldest_atomic_in_flight_seconds": max(ages, default=0)} if ages or not running else {}
    return {"atomic_in_flight": len(running), **known}


def _seconds(since: datetime | None, now: datetime | None) -> float:
    """Both times are the database's: ages do not depend on the clock of the application's host."""
    return 0 if since is None or now is None else max(0.0, (now - since).total_seconds())
