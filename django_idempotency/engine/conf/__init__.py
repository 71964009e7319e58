"""The options of protected endpoints, and the project's `IDEMPOTENCY` setting."""

from .fields import SAFE_METHODS
from .options import LEASED, Idempotency, Keywords, OnceKeywords, Options, as_options, for_methods, given_by, merged
from .settings import backend_for, get_settings, meta_name, place_of_keys, resolve

__all__ = [
    "LEASED",
    "SAFE_METHODS",
    "Idempotency",
    "Keywords",
    "OnceKeywords",
    "Options",
    "as_options",
    "backend_for",
    "for_methods",
    "get_settings",
    "given_by",
    "merged",
    "meta_name",
    "place_of_keys",
    "resolve",
]
