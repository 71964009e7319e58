"""Optional metrics for Prometheus. To use them, run `pip install prometheus-client`, and add this to your project:

    class ShopConfig(AppConfig):
        def ready(self):
            from django_idempotency import metrics

            metrics.install()

Each process counts its own events. `KeyCollector` reads its gauges from the database at each scrape, using indexes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from threading import RLock
from typing import Any

if find_spec("prometheus_client") is None:
    raise ModuleNotFoundError(
        "django_idempotency.metrics needs prometheus-client, which is not installed. "
        "Run: pip install prometheus-client",
        name="prometheus_client",
    )

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.db.models import Count, F, Max, Min
from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from .engine.conf import get_settings, resolve
from .engine.stores import alias_for, store_for
from .engine.stores.states import EXPIRED, HALF_DONE, IN_DOUBT, IN_FLIGHT, STUCK, Clock
from .exceptions import IdempotencyConfigurationError
from .limits import alone, is_limit
from .maintenance import running_transactions
from .maintenance.lookups import WAITS_SINCE
from .maintenance.renamed import unknown_operations
from .models import IdempotencyKey
from .signals import key_event

__all__ = ["KeyCollector", "install"]

GAUGED = {
    "in_flight": (IN_FLIGHT.condition, "Keys whose worker holds a lease."),
    "in_doubt": (
        IN_DOUBT.condition,
        "Keys that no worker holds, with a step that may or may not have taken effect.",
    ),
    "half_done": (
        HALF_DONE.condition,
        "Keys that no worker holds, with a finished external call but no final result.",
    ),
    "stuck": (STUCK.condition, "Keys whose lease has expired and whose work has made no external call."),
}
""""stuck" leaves out keys under which a call was made: these are in doubt or half done, which is more urgent."""
OLDEST = {
    "in_flight": "the claim of the oldest key that a worker holds, or 0 without one",
    **dict.fromkeys(("in_doubt", "half_done", "stuck"), "the oldest of these keys began to wait, or 0 without one"),
}
"""For keys that need attention, the age counts from when they began to wait, which can be long after their claim."""
GAUGES = {
    **{name: text for name, (_, text) in GAUGED.items()},
    **{f"oldest_{name}_seconds": f"Seconds since {since}." for name, since in OLDEST.items()},
    "atomic_in_flight": "The open transactions that hold atomic-mode keys. PostgreSQL only.",
    "oldest_atomic_in_flight_seconds": "Age of the oldest of these transactions, or 0 if none is open. PostgreSQL only."
    " Missing if the scrape's database role differs from the application's and is not a member of pg_read_all_stats.",
    "busiest_caller": "How many of the newest 2,000 keys belong to the caller who has the most of them.",
    "cleanup_lag_seconds": "Seconds since the first of the keys that are due for cleanup expired, or 0 if none is due.",
    "schemas_not_counted": "Other schemas that have a key table, such as those of tenants: no gauge counts their keys. "
    "PostgreSQL only.",
    "unknown_operations": "Names of stored operations that no endpoint has any more, for example because a route was "
    "renamed: their retries run again. Missing if the URLconf cannot be read.",
    "database_unavailable": "1 if this scrape could not query the database, otherwise 0.",
    "protection_off": "1 if `ENABLED` is False or `OBSERVE` is True in the process that serves the metrics, otherwise "
    "0. What workers run without protection is counted as the outcome `unprotected`.",
    "paused": "1 if `PAUSED` is on in the process that serves the metrics, otherwise 0. Missing if its callable fails.",
    "age_seconds": "Seconds since the values of the other gauges were read from the database.",
}
NEWEST = 2_000
"""How many of the newest keys a scrape searches for the caller with the most keys."""
TIMEOUT = 3.0
"""Seconds. Prometheus waits 10 seconds for a scrape by default, and the old values must reach it in time."""
logger = logging.getLogger("django_idempotency")


class KeyCollector:
    """Gauges for the stored keys. Each scrape runs up to nine short queries on each database.

    Only one scrape at a time queries the databases. A scrape that arrives meanwhile gets the same values.

    Args:
        using: database aliases; default: the write alias of the key table.
        timeout: how many seconds a query may take, including its wait for locks. SQLite has its own `timeout`.
    """

    def __init__(self, *using: str, timeout: float = TIMEOUT) -> None:
        self.using = using
        self.timeout = timeout
        self._one_at_a_time = RLock()
        self._asked_at = -math.inf
        self._read: dict[str, tuple[float, dict[str, float]]] = {}
        self._failed: set[str] = set()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges without values, so that registering the collector runs no queries."""
        return _families().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges.

        If a database does not answer in time, its gauges keep the values of the last successful scrape, so that alerts
        stay active.
        """
        families, arrived = _families(), time.monotonic()
        aliases = self.using or (alias_for(None),)
        # Only one scrape at a time runs queries. Otherwise, while a migration locks the table, each scrape would leave
        # another session waiting for it.
        ask = partial(self._ask_since, arrived, aliases)
        asked = alone(self._one_at_a_time, ask, timeout=self.timeout * len(aliases))
        off = float(not get_settings().enabled or resolve().observe)
        for alias in aliases:
            unavailable = float(not asked or alias in self._failed)
            read_at, values = self._read.get(alias, (None, {}))
            age = {} if read_at is None else {"age_seconds": max(0.0, arrived - read_at)}
            told = {"database_unavailable": unavailable, "protection_off": off, **age, **values}
            for name, value in told.items():
                families[name].add_metric([alias], value)
        return families.values()

    def _ask_since(self, arrived: float, aliases: Iterable[str]) -> bool:
        if self._asked_at < arrived:
            for alias in aliases:
                self._ask(alias)
            self._asked_at = time.monotonic()
        return True

    def _ask(self, alias: str) -> None:
        opened_before = connections[alias].connection
        try:
            values = store_for(alias).read(self.timeout, partial(_values, alias))
            self._read[alias] = time.monotonic(), values
            self._failed.discard(alias)
        except Error:
            self._failed.add(alias)
            logger.exception("The idempotency keys of %s could not be counted for Prometheus.", alias)
        finally:
            # `start_http_server` serves scrapes in threads that do not handle Django requests, so Django does not
            # close their connections.
            if opened_before is None:
                connections[alias].close()


def install(*using: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Count every outcome, and register a `KeyCollector`. Call this once for each process and registry.

    It runs no query.

    Args:
        using: database aliases; default: the write alias of the key table.
        registry: where the metrics are registered.

    Raises:
        ValueError: the metrics are already installed in this registry.
    """
    outcomes = Counter(
        "idempotency_key_outcomes", "Outcomes of idempotency keys.", ("operation", "outcome"), registry=registry
    )
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
        since = F("created_at") if name == IN_FLIGHT.name else WAITS_SINCE
        total = keys.filter(condition).aggregate(count=Count("pk"), oldest=Min(since), now=Max(Clock()))
        values |= {name: total["count"], f"oldest_{name}_seconds": _seconds(total["oldest"], total["now"])}
    due = keys.filter(EXPIRED.condition).order_by("expires_at").values_list("expires_at", Clock()).first()
    values["cleanup_lag_seconds"] = _seconds(*(due or (None, None)))
    newest = keys.aggregate(newest=Max("pk"))["newest"] or 0
    callers = keys.filter(pk__gt=newest - NEWEST).values("scope").annotate(count=Count("pk")).order_by("-count")
    values["busiest_caller"] = callers.values_list("count", flat=True).first() or 0
    values["schemas_not_counted"] = len(store_for(alias).elsewhere())
    # A process that only serves metrics may have no URLconf.
    with suppress(IdempotencyConfigurationError, ImportError, ImproperlyConfigured):
        if hasattr(settings, "ROOT_URLCONF"):
            values["unknown_operations"] = len(unknown_operations(using=alias))
    # An unknown value is omitted, because 0 would mean that no transaction is open.
    if (running := running_transactions(using=alias)) is not None:
        values["atomic_in_flight"] = len(running)
        ages = [transaction.seconds for transaction in running if transaction.seconds is not None]
        if ages or not running:
            values["oldest_atomic_in_flight_seconds"] = max(ages, default=0)
    try:  # read last, because an error in a query of the project's callable ends this transaction
        values["paused"] = float(get_settings().pauses())
    except Exception as error:
        if is_limit(error):
            raise
        logger.exception("IDEMPOTENCY['PAUSED'] failed: it is unknown whether requests are paused.")
    return values


def _seconds(since: datetime | None, now: datetime | None) -> float:
    """The seconds between two times measured by the database's clock."""
    return 0 if since is None or now is None else max(0.0, (now - since).total_seconds())
