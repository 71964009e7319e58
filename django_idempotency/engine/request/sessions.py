"""What does a duplicate do to the caller's session?"""

from __future__ import annotations

from typing import Any

from django.contrib.sessions.backends.base import SessionBase


def keep_stored_session(request: Any) -> None:
    """Give a duplicate a new session object, so that Django does not save the data that it has loaded.

    The first request can change the stored session after the duplicate request has loaded it.
    """
    loaded = getattr(request, "session", None)
    if isinstance(loaded, SessionBase) and loaded.session_key and not loaded.modified:
        request.session = type(loaded)(loaded.session_key)
        request.session.accessed = loaded.accessed
