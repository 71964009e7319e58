"""A plugin of pytest for the REST framework's tests: every `APIView` has the mixin, and failures go to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from watching import FIGURES, MODE, watched

REPORT: dict[str, Any] = {"run": [], "skipped": 0, "failed": {}, "figures": FIGURES}

configure = LazySettings.configure


def configure_with_keys(self: Any, **options: Any) -> None:
    """The tests make their settings in a hook of their own."""
    configure(self, **{**options, "INSTALLED_APPS": (*options["INSTALLED_APPS"], "django_idempotency")})


LazySettings.configure = configure_with_keys


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    import every_view

    every_view.install()
    if MODE != "bare":
        _protect_every_class(every_view.OPTIONS)


def _protect_every_class(options: Any) -> None:
    """Replace `APIView` before the modules that derive from it are imported."""
    from rest_framework import views

    from django_idempotency import IdempotencyConfigurationError
    from django_idempotency.rest_framework import IdempotencyMixin

    class APIView(IdempotencyMixin, views.APIView):
        __module__ = views.__name__
        idempotency = options

        @classmethod
        def as_view(cls, **initkwargs: Any) -> Any:
            try:
                return watched(super().as_view(**initkwargs))
            except IdempotencyConfigurationError:  # a decorator of a handler may check who is calling
                return super().as_view(**{**initkwargs, "idempotency": None})

    views.APIView = APIView


@pytest.fixture(autouse=True, scope="session")
def _queries_allowed(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """A test without a database forbids queries, and the package needs its own."""
    with django_db_blocker.unblock():
        yield


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call":
        REPORT["run"].append(report.nodeid)
    REPORT["skipped"] += report.skipped
    if report.failed:
        REPORT["failed"][report.nodeid] = str(report.longrepr)


def pytest_sessionfinish() -> None:
    Path(os.environ["FRAMEWORKS_REPORT"]).write_text(json.dumps(REPORT))
