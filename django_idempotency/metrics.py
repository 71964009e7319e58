"""Prometheus metrics. Imported by nobody but you: `pip install prometheus-client`, then

    class ShopConfig(AppConfig):
        def ready(self):
            from django_idempotency import metrics

            metrics.install()

Counters count what this process does; `KeyCollector` asks the database at every scrape, by its partial indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

if find_spec("prometheus_client") is None:
    raise ModuleNotFoundError(
        "django_idempotency.metrics needs prometheus-client, which is not installed. "
        "Run: pip install prometheus-client",
        name="prometheus_client",
    )

from django.db import DatabaseError
from django.db.models import Count, Min
from django.dispatch import Signal
from django.utils import timezone
from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from . import signals
from .engine.stores import Store, alias_for, store_for
from .models import IdempotencyKey

__all__ = ["KeyCollector", "install"]

OUTCOMES: dict[str, Signal] = {
    "claimed": signals.key_claimed,
    "completed": signals.key_completed,
    "replayed": signals.key_replayed,
    "conflicted": signals.key_conflicted,
    "mismatched": signals.key_mismatched,
    "released": signals.key_released,
    "taken_over": signals.key_taken_over,
    "held": signals.key_held,
}
GAUGES = {
    "in_flight": "Keys under a lease, alive or stuck. Keys of atomic mode are not seen before they commit.",
    "oldest_in_flight_seconds": "Seconds since the oldest key under a lease was first claimed; 0 if there is none.",
    "stuck": "Keys whose lease has lapsed: their worker died or is too slow.",
    "in_doubt": "Keys with an external call of unknown outcome that nobody works on.",
    "cleanup_lag_seconds": "Seconds since the oldest key that cleanup would delete expired; 0 if there is none.",
}
_installed: list[Counter] = []
logger = logging.getLogger("django_idempotency")


class KeyCollector:
    """What the key tables of these databases hold now. Runs a few short queries at every scrape.

    using: database aliases; default: the write alias of the key table.
    """

    def __init__(self, *using: str) -> None:
        self.using = using

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Names only: registering asks no database."""
        return _families().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """A database that does not answer has no gauges in this scrape; the others, and the counters, stay."""
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
    """Count every outcome from now on, and register a `KeyCollector`. Once for each process and registry.

    using: database aliases, see `KeyCollector`.

    Raises ValueError if it is installed in this registry already.
    """
    outcomes = Counter("idempotency_key_outcomes", "What came of keys.", ("operation", "outcome"), registry=registry)
    _installed.append(outcomes)
    purged = Counter("idempotency_keys_purged", "Expired keys deleted.", ("database",), registry=registry)
    registry.register(KeyCollector(*using))

    def count(outcome: str) -> Any:
        def receive(identity: Any, **kwargs: Any) -> None:
            outcomes.labels(identity.operation, outcome).inc()

        return receive

    def count_purged(using: str, cleanup: Any, **kwargs: Any) -> None:
        purged.labels(using).inc(cleanup.deleted)

    for outcome, signal in OUTCOMES.items():
        signal.connect(count(outcome), weak=False)
    signals.keys_purged.connect(count_purged, weak=False)


def totals() -> dict[str, int]:
    """How often this process has counted each outcome, over all operations. Empty unless it is installed."""
    found: dict[str, int] = {}
    for counter in _installed[:1]:
        for sample in next(iter(counter.collect())).samples:
            if sample.name.endswith("_total"):
                outcome = sample.labels["outcome"]
                found[outcome] = found.get(outcome, 0) + int(sample.value)
    return found


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(f"idempotency_keys_{name}", text, labels=["database"]) for name, text in GAUGES.items()
    }


def _measured(alias: str) -> dict[str, float]:
    store = store_for(alias)
    opened_here = store.connection.connection is None
    try:
        return _values(store)
    finally:
        if opened_here:  # no request may be there to end, and to give it back: `start_http_server` has its own threads
            store.connection.close()


def _values(store: Store) -> dict[str, float]:
    keys = IdempotencyKey.objects.using(store.alias)
    flying = keys.filter(locked_until__isnull=False).aggregate(count=Count("pk"), oldest=Min("created_at"))
    # Failed keys may be held for a person, and those in progress never expire.
    due = keys.filter(status=IdempotencyKey.Status.COMPLETED, expires_at__lte=timezone.now()).order_by("expires_at")
    return {
        "in_flight": flying["count"],
        "oldest_in_flight_seconds": _seconds_since(flying["oldest"]),
        "stuck": store.count_stuck(),
        "in_doubt": store.count_in_doubt(),
        "cleanup_lag_seconds": _seconds_since(due.values_list("expires_at", flat=True).first()),
    }


def _seconds_since(moment: Any) -> float:
    return 0 if moment is None else max(0.0, (timezone.now() - moment).total_seconds())
