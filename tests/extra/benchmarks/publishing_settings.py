"""The project of publishing.py, as it is deployed."""

from __future__ import annotations

import json
import os

from tests.extra.benchmarks.server_settings import *  # noqa: F403

IDEMPOTENCY = {"BACKENDS": json.loads(os.environ["KEYS"])}
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]  # no CSRF: the clients are programs
ROOT_URLCONF = "tests.extra.benchmarks.publishing"
