from __future__ import annotations

from tests.server.settings import *  # noqa: F403
from tests.settings import MIDDLEWARE

MIDDLEWARE = ["tests.interop.faults.faults", *MIDDLEWARE]
ROOT_URLCONF = "tests.interop.urls"
