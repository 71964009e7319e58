"""Optional traces and metrics for OpenTelemetry. To use them, run `pip install opentelemetry-api`, and add this:

    class ShopConfig(AppConfig):
        def ready(self):
            from django_idempotency import opentelemetry

            opentelemetry.install()

Each event of a key becomes an event of the current span and increments a counter. Neither contains a key, a scope or a
body. The project's SDK decides where they are sent; without an SDK, nothing happens.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

if find_spec("opentelemetry") is None:
    raise ModuleNotFoundError(
        "django_idempotency.opentelemetry needs opentelemetry-api, which is not installed. "
        "Run: pip install opentelemetry-api",
        name="opentelemetry",
    )

from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import get_current_span

from .signals import key_event

__all__ = ["install"]

NAME = "django_idempotency"
"""The name of the instrumentation scope. It is also the receiver's `dispatch_uid`, so that a second call of `install`
does not count events twice."""


def install(*, meter_provider: MeterProvider | None = None) -> None:
    """Record each event of a key. Call this once for each process.

    Args:
        meter_provider: the provider that the counters belong to; default: the global one.
    """
    meter = get_meter(NAME, meter_provider=meter_provider)
    outcomes = meter.create_counter("idempotency.key.outcomes", "{event}", "Outcomes of idempotency keys.")
    purged = meter.create_counter("idempotency.keys.purged", "{key}", "Expired keys deleted.")

    def record(event: str, using: str | None, identity: Any, cleanup: Any, **kwargs: Any) -> None:
        if cleanup is not None:
            purged.add(cleanup.deleted, {"idempotency.database": str(using)})
            return
        of = {"idempotency.operation": identity.operation, "idempotency.outcome": event}
        outcomes.add(1, of)
        place = {"idempotency.database": using, "idempotency.backend": kwargs["backend"]}
        about = {"idempotency.key_reference": identity.reference, "idempotency.attempt": kwargs["attempt"]}
        told = {**of, **place, **about, "idempotency.reason": kwargs["reason"] or None}
        if (resource := kwargs["resource"]) is not None:
            told |= {"idempotency.resource.type": resource[0], "idempotency.resource.id": resource[1]}
        # The current span may already have ended, for example if the event waited for an outer transaction's COMMIT. It
        # then ignores the event.
        get_current_span().add_event(f"idempotency.{event}", {k: v for k, v in told.items() if v is not None})

    key_event.connect(record, weak=False, dispatch_uid=NAME)
