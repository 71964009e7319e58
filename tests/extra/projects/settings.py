"""What the settings of each project begin with."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, MIDDLEWARE

PROTECTED = "PROJECT_PROTECTED" in os.environ
DATABASES = {"default": {**DATABASES["default"], "NAME": os.environ["SERVER_DATABASE"]}}
MIDDLEWARE = ["tests.extra.projects.faults.faults", *MIDDLEWARE]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.sites",
    "django.contrib.staticfiles",
    "django_idempotency",
    "tests.shopapp",
]
SITE_ID = 1
# To read what a server says: GUNICORN_CMD_ARGS="--capture-output --error-logfile FILE".
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"errors": {"class": "logging.StreamHandler", "level": "ERROR"}},
    "root": {"handlers": ["errors"]},
}
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"


class _TablesOfModels:
    """The tables are made from the models, but for this package's own: other people's migrations take minutes."""

    def __contains__(self, app: str) -> bool:
        return app != "django_idempotency"

    def __getitem__(self, app: str) -> None:
        return None


MIGRATION_MODULES = _TablesOfModels()
