"""The stage: Django on the tests' PostgreSQL, with real commits and in real tables."""

from __future__ import annotations

import logging
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.core.management import call_command
from django.db import connection
from django.test.runner import DiscoverRunner
from django.test.utils import setup_test_environment

from tests.extra.benchmarks import floor
from tests.extra.benchmarks.views import HandMadeKey


def build() -> None:
    """A database for this run, which ends with the process or is made anew by the next one."""
    setup_test_environment(debug=False)
    logging.getLogger("django_idempotency").addHandler(logging.NullHandler())  # made, but not printed
    DiscoverRunner(verbosity=0, interactive=False).setup_databases()
    call_command("flush", verbosity=0, interactive=False)
    with connection.schema_editor() as editor:
        editor.create_model(HandMadeKey)
    floor.build()
    with connection.cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET fsync = on")
        cursor.execute("SELECT pg_reload_conf()")
