from __future__ import annotations

import os
from typing import Any

from django.db.backends.postgresql import base
from django.db.backends.utils import CursorWrapper

from tests.server.boundaries import boundary


class Cursor(CursorWrapper):
    def execute(self, sql: Any, params: Any = None) -> Any:
        boundary()
        result = super().execute(sql, params)
        boundary()
        return result


class DatabaseWrapper(base.DatabaseWrapper):
    def get_connection_params(self) -> dict[str, Any]:
        """A worker of gunicorn's may be a fork of the process that has read the settings."""
        params: dict[str, Any] = super().get_connection_params()
        if name := params.get("application_name"):
            params["application_name"] = name.format(process=os.getpid())
        return params

    def make_cursor(self, cursor: Any) -> Cursor:
        return Cursor(cursor, self)

    def _commit(self) -> None:
        boundary()
        super()._commit()
        boundary()

    def _rollback(self) -> None:
        boundary()
        super()._rollback()
        boundary()
