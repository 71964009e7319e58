"""A test runner for Django's tests: every view is protected, and what was run and failed is written to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.test.runner import DiscoverRunner
from django.test.utils import iter_test_cases

APP = "django_idempotency"

# Django's own script has set the applications, and imports the tests after this module.
settings.INSTALLED_APPS.insert(0 if os.environ["FRAMEWORKS_ORDER"] == "first" else len(settings.INSTALLED_APPS), APP)
apps.set_installed_apps(settings.INSTALLED_APPS)

import every_view
from watching import FIGURES

every_view.install()


class Runner(DiscoverRunner):
    def run_suite(self, suite: Any, **kwargs: Any) -> Any:
        run = [test.id() for test in iter_test_cases(suite)]
        result = super().run_suite(suite, **kwargs)
        failed = {_name(test): text for test, text in (*result.failures, *result.errors)}
        report = {"run": run, "skipped": len(result.skipped), "failed": failed, "figures": FIGURES}
        Path(os.environ["FRAMEWORKS_REPORT"]).write_text(json.dumps(report))
        return result


def _name(test: Any) -> str:
    """The label that runs the test: of a subtest the whole test, of `setUpClass (package.Class)` the class."""
    identifier = getattr(test, "test_case", test).id()
    return identifier.partition("(")[2].rstrip(")") or identifier
