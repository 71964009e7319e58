"""`IdempotencyMixin` for Django REST framework, and refusals in the format of the project's `EXCEPTION_HANDLER`."""

from .errors import RequestRefused, error_response
from .mixins import IdempotencyMixin

__all__ = ["IdempotencyMixin", "RequestRefused", "error_response"]
