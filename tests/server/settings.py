from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["NAME"] = os.environ["SERVER_DATABASE"]
if "postgresql" in DATABASES["default"]["ENGINE"]:
    DATABASES["default"]["ENGINE"] = "tests.server.boundaries"
DATABASES["default"]["ATOMIC_REQUESTS"] = bool(os.environ.get("SERVER_ATOMIC_REQUESTS"))
DATABASES["default"]["OPTIONS"]["application_name"] = f"worker-{os.getpid()}"
del DATABASES["other"]
ROOT_URLCONF = "tests.server.urls"
