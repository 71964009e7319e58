from __future__ import annotations

from django.db.backends.postgresql import base

from tests.server.boundaries import boundary


class DatabaseWrapper(base.DatabaseWrapper):
    def _commit(self) -> None:
        boundary()
        super()._commit()
        boundary()

    def _rollback(self) -> None:
        boundary()
        super()._rollback()
        boundary()
