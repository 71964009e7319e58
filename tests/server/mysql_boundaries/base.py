from __future__ import annotations

from django.db.backends.mysql import base

from tests.server.boundaries.wrapping import WithBoundaries


class DatabaseWrapper(WithBoundaries, base.DatabaseWrapper):
    """Django's MySQL backend, with the boundaries of `tests.server.boundaries`."""
