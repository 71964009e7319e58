"""This package defines the options of protected endpoints, and reads the project's `IDEMPOTENCY` setting."""

from .fields import SAFE_METHODS
from .options import LEASED, Idempotency, Keywords, OnceKeywords, as_options, for_methods
from .settings import get_settings, meta_name, resolve

__all__ = [
    "LEASED",
    "SAFE_METHODS",
    "Idempotency",
    "Keywords",
    "OnceKeywords",
    "as_options",
    "for_methods",
    "get_settings",
    "meta_name",
    "resolve",
]
