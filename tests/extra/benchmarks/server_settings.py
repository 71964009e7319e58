"""A project as it is deployed: Django's usual middleware, connections that are kept."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"].update(NAME=os.environ["SERVER_DATABASE"], CONN_MAX_AGE=None)
ROOT_URLCONF = "tests.extra.benchmarks.server_urls"
