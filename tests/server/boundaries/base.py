from __future__ import annotations

import os
from typing import Any

from django.db.backends.postgresql import base

from tests.server.boundaries.wrapping import WithBoundaries


class DatabaseWrapper(WithBoundaries, base.DatabaseWrapper):
    def get_connection_params(self) -> dict[str, Any]:
        """A worker of gunicorn's may be a fork of the process that has read the settings."""
        params: dict[str, Any] = super().get_connection_params()
        if name := params.get("application_name"):
            params["application_name"] = name.format(process=os.getpid())
        return params
