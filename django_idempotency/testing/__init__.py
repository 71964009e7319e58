"""These functions help you to test your project. The function `assert_idempotent` checks that an endpoint is
idempotent. The function `create_key` creates a row of the key table. The function `clear_backends` forgets keys that
are kept in memory.
"""

from ..maintenance import scope_of_user
from .assertions import assert_idempotent
from .backends import clear_backends
from .rows import create_key

__all__ = ["assert_idempotent", "clear_backends", "create_key", "scope_of_user"]
