"""Helpers for a project's own tests: check an endpoint, create a stored key, or clear the keys kept in memory."""

from ..maintenance import scope_of_user
from .assertions import assert_idempotent
from .backends import clear_backends
from .rows import create_key

__all__ = ["assert_idempotent", "clear_backends", "create_key", "scope_of_user"]
