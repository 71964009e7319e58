"""Spans and counters, by OpenTelemetry's own exporters in memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_idempotency import PayloadMismatch, opentelemetry, run_once
from django_idempotency.models import IdempotencyKey
from django_idempotency.signals import key_event
from tests.leases import Broken, breaks

pytestmark = pytest.mark.django_db(transaction=True)
OF = {"idempotency.operation": "pay"}


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    """Installed, and again, as by two apps."""
    reader = InMemoryMetricReader()
    for provider in (MeterProvider([reader]), MeterProvider()):
        opentelemetry.install(meter_provider=provider)
    yield reader
    assert key_event.disconnect(dispatch_uid=opentelemetry.NAME)


def once(work: Any = lambda *operation: 1, **changes: Any) -> Any:
    return run_once(work, **{"scope": "s3cret", "key": "s3cret-key", "operation": "pay", "payload": 1, **changes})


def counted(reader: InMemoryMetricReader) -> dict[str, dict[str, Any]]:
    """Each counter's values by the last of its attributes."""
    data: Any = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    assert data.resource_metrics[0].scope_metrics[0].scope.name == "django_idempotency"
    return {
        metric.name: {[*point.attributes.values()][-1]: point.value for point in metric.data.data_points}
        for metric in metrics
    }


@pytest.mark.usefixtures("reader")
def test_each_event_is_one_of_the_current_span() -> None:
    """With its attributes, and without a key, a scope or a result. A later event doesn't replace an earlier one."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("tests").start_as_current_span("request"):
        once(lambda operation: operation.refer_to("order", "7"))
        once()
        with pytest.raises(PayloadMismatch):
            once(payload=2)
        with pytest.raises(Broken):
            once(lambda operation: breaks(), key="other")
        once(key="third", lease=60)
    (span,) = exporter.get_finished_spans()
    told = [(event.name, dict(event.attributes)) for event in span.events]
    names = [name.removeprefix("idempotency.") for name, _ in told]
    assert names == ["claimed", "completed", "replayed", "mismatched", "released", "claimed", "completed"]
    place = {"idempotency.database": "default", "idempotency.key_reference": told[0][1]["idempotency.key_reference"]}
    order = {"idempotency.resource.type": "order", "idempotency.resource.id": "7"}
    assert told[1][1] == {**OF, "idempotency.outcome": "completed", **place, **order}
    assert told[4][1]["idempotency.reason"] == "tests.leases.Broken"
    assert told[5][1]["idempotency.attempt"] == 1
    assert "s3cret" not in str(told)


def test_outcomes_and_deleted_keys_are_counted(reader: InMemoryMetricReader) -> None:
    """Once each, although it was installed twice."""
    for _ in range(3):
        once()
    IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
    call_command("cleanup_idempotency_keys", verbosity=0)
    assert counted(reader) == {
        "idempotency.key.outcomes": {"claimed": 1, "completed": 1, "replayed": 2},
        "idempotency.keys.purged": {"default": 1},
    }


def test_without_a_span_there_are_only_counters(reader: InMemoryMetricReader) -> None:
    """As in a cron job that isn't traced. A key in a backend has no database."""
    once(backend="memory", lease=60)
    assert counted(reader) == {"idempotency.key.outcomes": {"claimed": 1, "completed": 1}}


@pytest.fixture(autouse=True)
def _backend(settings: Any) -> None:
    settings.IDEMPOTENCY = {"BACKENDS": {"memory": {"BACKEND": "django_idempotency.backends.memory.MemoryBackend"}}}
