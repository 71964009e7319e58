from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["NAME"] = os.environ["SERVER_DATABASE"]
ON_POSTGRESQL = "postgresql" in DATABASES["default"]["ENGINE"]
if "mysql" in DATABASES["default"]["ENGINE"]:
    DATABASES["default"]["ENGINE"] = "tests.server.mysql_boundaries"
if "SERVER_USER" in os.environ:
    DATABASES["default"]["USER"] = os.environ["SERVER_USER"]
DATABASES["default"]["ATOMIC_REQUESTS"] = bool(os.environ.get("SERVER_ATOMIC_REQUESTS"))
if isolation := os.environ.get("SERVER_ISOLATION"):
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    DATABASES["default"]["OPTIONS"]["isolation_level"] = IsolationLevel[isolation]
if "SERVER_HOST" in os.environ:  # a pooler
    DATABASES["default"].update(HOST=os.environ["SERVER_HOST"], PORT=os.environ["SERVER_PORT"])
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
    DATABASES["default"]["OPTIONS"]["server_side_binding"] = bool(os.environ.get("SERVER_SIDE_BINDING"))
    if "SERVER_PREPARE_THRESHOLD" in os.environ:
        DATABASES["default"]["OPTIONS"]["prepare_threshold"] = int(os.environ["SERVER_PREPARE_THRESHOLD"])
elif ON_POSTGRESQL:

    def name_connections() -> None:
        """By the number of the process. A worker of gunicorn's may be a fork of the process that has read this."""
        name = f"worker-{os.getpid()}-{os.environ.get('SERVER_NAME', '')}"
        DATABASES["default"]["OPTIONS"]["application_name"] = name

    name_connections()
    os.register_at_fork(after_in_child=name_connections)
if "SERVER_CONN_MAX_AGE" in os.environ:
    DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ["SERVER_CONN_MAX_AGE"])
if "SERVER_ENCRYPTION_KEY" in os.environ:
    IDEMPOTENCY = {"ENCRYPTION_KEYS": [os.environ["SERVER_ENCRYPTION_KEY"]]}
del DATABASES["other"]
ROOT_URLCONF = "tests.server.urls"
