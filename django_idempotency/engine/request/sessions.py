"""What does a duplicate do to the caller's session?"""

from __future__ import annotations

from copy import copy
from typing import Any

from django.contrib.sessions.backends.base import SessionBase


def keep_stored_session(request: Any) -> None:
    """Replace a duplicate's session, so that Django doesn't overwrite the first request's changes with older data."""
    loaded = getattr(request, "session", None)
    if isinstance(loaded, SessionBase) and loaded.session_key and not loaded.modified:
        # The session is copied, because only the project knows which arguments its session engine takes.
        request.session = copy(loaded)
        vars(request.session).pop("_session_cache", None)
