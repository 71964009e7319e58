"""What a request asks for, as the fingerprint sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.test import RequestFactory

from django_idempotency import Idempotency
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.versions import Fingerprint
from django_idempotency.engine.request.fingerprints import fingerprint_of, parsed_payload_of, payload_of

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"


def both_of(request: Any, **options: Any) -> Fingerprint:
    """By the current version of the rule, and by earlier ones."""
    return fingerprint_of(request, resolve(Idempotency(**options)), request, payload_of)


def of(request: Any, **options: Any) -> bytes:
    return both_of(request, **options).current


def parsed_as(parsed: Callable[[], Any]) -> Any:
    """What reads a body for a framework whose parser returns this."""
    return lambda request, options, content_type: parsed_payload_of(request, content_type, parsed)


def seen(body: Any, content_type: str = JSON, path: str = "/", method: str = "POST", **options: Any) -> bytes:
    return of(RequestFactory().generic(method, path, body, content_type=content_type), **options)


def both_seen(body: Any, content_type: str = JSON, path: str = "/", **options: Any) -> Fingerprint:
    return both_of(RequestFactory().generic("POST", path, body, content_type=content_type), **options)
