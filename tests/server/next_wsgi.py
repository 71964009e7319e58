"""The test server, of the release after this one."""

from __future__ import annotations

from tests.server.wsgi import application  # isort: skip (it sets Django up)
from tests.next_release import become_the_next

__all__ = ["application"]
become_the_next()
