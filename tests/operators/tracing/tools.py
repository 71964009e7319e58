"""A project under a tracing tool. Prints what the tool has seen, as JSON.

A process of its own: a tool changes classes of Django or of the driver for good.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import django
from django.conf import settings

SEEN: list[str] = []


def sentry() -> None:
    """The integration with Django."""
    import sentry_sdk
    from sentry_sdk.integrations.django import DjangoIntegration

    def note(event: Any, hint: Any) -> None:
        """Nothing is sent."""
        SEEN.extend(span["description"] for span in event["spans"] if span["op"] == "db")

    sentry_sdk.init(
        dsn="http://key@localhost/1",
        integrations=[DjangoIntegration()],
        auto_enabling_integrations=False,
        traces_sample_rate=1.0,
        before_send_transaction=note,
    )


def opentelemetry(**options: Any) -> None:
    """The instrumentations of Django and of psycopg."""
    from opentelemetry.instrumentation.django import DjangoInstrumentor
    from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Noting(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            SEEN.extend(filter(None, map(statement, spans)))
            return SpanExportResult.SUCCESS

    def statement(span: ReadableSpan) -> Any:
        attributes = span.attributes or {}
        return attributes.get("db.statement") or attributes.get("db.query.text")

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Noting()))
    DjangoInstrumentor().instrument(tracer_provider=provider)
    PsycopgInstrumentor().instrument(tracer_provider=provider, **options)


def opentelemetry_with_comments() -> None:
    """The tool writes the trace into each statement, as a comment."""
    opentelemetry(enable_commenter=True)


def toolbar() -> None:
    """The SQL panel of django-debug-toolbar."""
    settings.INSTALLED_APPS += ["debug_toolbar"]
    settings.MIDDLEWARE.insert(0, "debug_toolbar.middleware.DebugToolbarMiddleware")
    settings.ROOT_URLCONF = "tests.operators.tracing.toolbar_urls"
    settings.DEBUG_TOOLBAR_PANELS = ["tests.operators.tracing.panel.Panel"]
    settings.DEBUG_TOOLBAR_CONFIG = {"SHOW_TOOLBAR_CALLBACK": lambda request: True}


def toolbar_with_debug() -> None:
    """As the tool is used for the most part. Django's own query log is on then."""
    toolbar()
    settings.DEBUG = True


TOOLS: dict[str, Callable[[], None]] = {
    tool.__name__: tool for tool in (sentry, opentelemetry, opentelemetry_with_comments, toolbar, toolbar_with_debug)
}


def requests() -> dict[str, Any]:
    """A first request and its retry: what the tool has seen of each, and their answers. Some tools begin at WSGI."""
    import httpx
    from django.core.wsgi import get_wsgi_application

    client = httpx.Client(transport=httpx.WSGITransport(get_wsgi_application()), base_url="http://shop")

    def send(key: str) -> Any:
        SEEN.clear()
        response = client.post("/create", json={}, headers={"Idempotency-Key": key})
        return [response.status_code, response.headers["Idempotency-Replayed"], list(SEEN)]

    send("new-connection")
    return {"first": send("one"), "retry": send("one")}


def main(tool: str, database: str) -> None:
    settings.DATABASES["default"]["NAME"] = database
    settings.ROOT_URLCONF = "tests.view_urls"
    settings.MIDDLEWARE.remove("django.middleware.csrf.CsrfViewMiddleware")  # clients of an API have no cookie
    TOOLS[tool]()
    django.setup()
    json.dump(requests(), sys.stdout)
