"""Of both releases, on the database of the tests."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

del DATABASES["other"]
DATABASES["default"]["NAME"] = os.environ["SERVER_DATABASE"]
if "SERVER_HOST" in os.environ:  # a pooler
    DATABASES["default"].update(HOST=os.environ["SERVER_HOST"], PORT=os.environ["SERVER_PORT"])
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
ROOT_URLCONF = os.environ["SHOP_URLS"]
MIDDLEWARE = json.loads(os.environ.get("SHOP_MIDDLEWARE", "[]"))
IDEMPOTENCY = json.loads(os.environ.get("SHOP_IDEMPOTENCY", "{}"))
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django_idempotency",
    "tests.shopapp",
]
SILENCED_SYSTEM_CHECKS = ["django_idempotency.W015"]  # keys whose operation has no name are here on purpose
