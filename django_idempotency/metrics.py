"""This module has metrics for Prometheus. The package itself never imports this module. Run `pip install
prometheus-client`, and add this code to your project:

    class ShopConfig(AppConfig):
        def ready(self):
            from django_idempotency import metrics

            metrics.install()

The counters count only the events of the current process. Each time Prometheus reads the metrics, the class
`KeyCollector` queries the database. The collector's queries are fast, because each query on the key table uses an
index.
"""

from __future__ import annotations

import logging
import time
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

from django.db import Error, connections
from django.db.models import Count, Max, Min
from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from .engine.conf import get_settings, resolve
from .engine.stores import alias_for
from .engine.stores.states import EXPIRED, HALF_DONE, IN_DOUBT, IN_FLIGHT, STUCK, Clock
from .maintenance import running_transactions
from .models import IdempotencyKey
from .signals import key_event

__all__ = ["KeyCollector", "install"]

GAUGED = {
    "in_flight": (IN_FLIGHT.condition, "Keys whose worker holds a lease."),
    "in_doubt": (IN_DOUBT.condition, "Keys without a worker. It is not known whether a step had an effect."),
    "half_done": (HALF_DONE.condition, "Keys without a worker. A call is finished, but the operation is not."),
    "stuck": (STUCK.condition, "Keys whose lease is over, and whose work has made no external call."),
}
"""A stuck key with a call is in doubt or half done. The gauge "stuck" leaves it out, as those states are more urgent.
"""
GAUGES = {
    **{name: text for name, (_, text) in GAUGED.items()},
    **{f"oldest_{name}_seconds": "Age of the oldest key in this state, in seconds since its claim." for name in GAUGED},
    "atomic_in_flight": "The number of open transactions that hold keys of atomic mode. PostgreSQL only.",
    "oldest_atomic_in_flight_seconds": "The age of the oldest of these transactions, or 0. PostgreSQL only. No value "
    "if the scrape uses another database role than the application, and this role is not in pg_read_all_stats.",
    "busiest_caller": "How many of the newest 2,000 keys are of one caller, the one that has claimed most of them.",
    "cleanup_lag_seconds": "Seconds since the expiry of the oldest key that a cleanup would delete. 0 if none.",
    "database_unavailable": "1 if this scrape could not ask the database, else 0.",
    "protection_off": "1 if the setting has `ENABLED` False or `OBSERVE` True, else 0. A view's own `observe` does not "
    "count.",
    "age_seconds": "Seconds since the values of the other gauges were read from the database.",
}
NEWEST = 2_000
"""Among this number of the newest keys, a scrape looks for the caller that has claimed most of them."""
logger = logging.getLogger("django_idempotency")


class KeyCollector:
    """The gauges describe the stored keys. Each scrape runs up to eight short queries on each database.

    Args:
        using: database aliases. Default: the write alias of the key table.
    """

    def __init__(self, *using: str) -> None:
        self.using = using
        self._read: dict[str, tuple[float, dict[str, float]]] = {}

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the names and the help texts of the gauges, but no values. So no query runs when the collector is
        registered.
        """
        return _families().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges. If a database does not answer, its gauges keep the values of the last successful scrape.
        So an active alert remains active while the database does not answer.
        """
        families = _families()
        for alias in self.using or (alias_for(None),):
            now, unavailable, opened_before = time.monotonic(), 0.0, connections[alias].connection
            try:
                self._read[alias] = now, _values(alias)
            except Error:
                unavailable = 1.0
                logger.exception("The idempotency keys of %s could not be counted for Prometheus.", alias)
            finally:
                # The function `start_http_server` runs each scrape in a thread that has no Django request. So Django
                # does not close the connection of this thread. If the collector has opened a database connection to
                # read the metrics, the collector closes this connection again.
                if opened_before is None:
                    connections[alias].close()
            read_at, values = self._read.get(alias, (None, {}))
            age = {} if read_at is None else {"age_seconds": now - read_at}
            off = float(not get_settings().enabled or resolve().observe)
            told = {"database_unavailable": unavailable, "protection_off": off, **age, **values}
            for name, value in told.items():
                families[name].add_metric([alias], value)
        return families.values()


def install(*using: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Count every outcome, and register a `KeyCollector`. Call this function once for each process and registry.

    This function does not send a query to a database.

    Args:
        using: database aliases. Default: the write alias of the key table.
        registry: the registry for the metrics.

    Raises:
        ValueError: the metrics are installed in this registry already.
    """
    outcomes = Counter("idempotency_key_outcomes", "What came of keys.", ("operation", "outcome"), registry=registry)
    purged = Counter("idempotency_keys_purged", "Expired keys deleted.", ("database",), registry=registry)
    registry.register(KeyCollector(*using))

    def count(event: str, using: str, identity: Any, cleanup: Any, **kwargs: Any) -> None:
        if cleanup is not None:
            purged.labels(using).inc(cleanup.deleted)
        else:
            outcomes.labels(identity.operation, event).inc()

    key_event.connect(count, weak=False)


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(f"idempotency_keys_{name}", text, labels=["database"]) for name, text in GAUGES.items()
    }


def _values(alias: str) -> dict[str, float]:
    keys, values = IdempotencyKey.objects.using(alias), dict[str, float]()
    for name, (condition, _) in GAUGED.items():
        found = keys.filter(condition).aggregate(count=Count("pk"), oldest=Min("created_at"), now=Max(Clock()))
        values |= {name: found["count"], f"oldest_{name}_seconds": _seconds(found["oldest"], found["now"])}
    due = keys.filter(EXPIRED.condition).order_by("expires_at").values_list("expires_at", Clock()).first()
    values["cleanup_lag_seconds"] = _seconds(*(due or (None, None)))
    newest = keys.aggregate(newest=Max("pk"))["newest"] or 0
    callers = keys.filter(pk__gt=newest - NEWEST).values("scope").annotate(count=Count("pk")).order_by("-count")
    values["busiest_caller"] = callers.values_list("count", flat=True).first() or 0
    # If a value about open transactions is unknown, the gauge is left out. The value 0 would say that no transaction is
    # open.
    if (running := running_transactions(using=alias)) is not None:
        values["atomic_in_flight"] = len(running)
        ages = [transaction.seconds for transaction in running if transaction.seconds is not None]
        if ages or not running:
            values["oldest_atomic_in_flight_seconds"] = max(ages, default=0)
    return values


def _seconds(since: datetime | None, now: datetime | None) -> float:
    """Return the seconds between two times. Both times come from the clock of the database."""
    return 0 if since is None or now is None else max(0.0, (now - since).total_seconds())
