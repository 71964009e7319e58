"""Django's MySQL backend with the boundaries of `tests.server.boundaries`: at each statement, COMMIT and ROLLBACK."""

from __future__ import annotations

from typing import Any

from django.db.backends.mysql import base
from django.db.backends.utils import CursorWrapper

from tests.server.boundaries import boundary


class Cursor(CursorWrapper):
    def execute(self, sql: Any, params: Any = None) -> Any:
        boundary()
        result = super().execute(sql, params)
        boundary()
        return result


class DatabaseWrapper(base.DatabaseWrapper):
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
