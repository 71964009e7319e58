from __future__ import annotations

from tests.server.settings import *  # noqa: F403
from tests.settings import MIDDLEWARE

MIDDLEWARE = ["tests.extra.interop.faults.faults", *MIDDLEWARE]
ROOT_URLCONF = "tests.extra.interop.urls"
