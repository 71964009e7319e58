from __future__ import annotations

from itertools import count
from typing import Any

from django.contrib.auth import get_user_model

_numbers = count(1)


def make_user(**fields: Any) -> Any:
    """A user of the project, under a name of its own."""
    return get_user_model()._default_manager.create(**{"username": f"user{next(_numbers)}", **fields})
