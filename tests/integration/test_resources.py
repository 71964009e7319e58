"""What a request may cost in memory, parsing and imports. Time is in the benchmarks."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.django_db


def test_nothing_is_imported_that_is_not_used() -> None:
    """A plain project on SQLite gets no framework, no driver, no metrics and no admin with the decorator."""
    script = """
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_idempotency"], ROOT_URLCONF="none", SECRET_KEY="s",
                   DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
from django.core.management import call_command
from django.test import RequestFactory
from django_idempotency import idempotent
call_command("migrate", verbosity=0)
from django.http import HttpResponse
def answer(request):
    return HttpResponse(status=201)
view = idempotent(operation="o")(answer)
view(RequestFactory().post("/", headers={"Idempotency-Key": "k"}, content_type="application/json"))
unwanted = ("rest_framework", "drf_spectacular", "ninja", "prometheus_client", "psycopg", "MySQLdb",
            "django.contrib.admin", "django_idempotency.admin", "django_idempotency.testing",
            "django_idempotency.rest_framework", "django_idempotency.ninja", "django_idempotency.metrics")
print([name for name in unwanted if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr
