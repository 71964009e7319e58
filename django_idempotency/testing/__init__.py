"""For the tests of your project: prove that an endpoint is idempotent, and make rows of the key table."""

from ..maintenance.erasure import scope_of_user
from .endpoints import assert_idempotent
from .rows import create_key

__all__ = ["assert_idempotent", "create_key", "scope_of_user"]
