"""Views to be listed, and the command that lists them."""

from __future__ import annotations

import io
from typing import Any

from django.core.management import call_command
from django.http import HttpResponse

URLS = "tests.operators.endpoints.endpoint_urls"


def run(*args: str, urlconf: str = URLS) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("idempotency_endpoints", *args, urlconf=urlconf, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def view(request: Any) -> HttpResponse:
    return HttpResponse()


def tenant(request: Any) -> str:
    return "tenant"
