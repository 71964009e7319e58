"""Options of protected endpoints, and the project's `IDEMPOTENCY` setting."""

from .fields import SAFE_METHODS
from .options import (
    OPTION_NAMES,
    Fingerprint,
    Idempotency,
    Keywords,
    OnceKeywords,
    UnleasedKeywords,
    as_options,
    for_methods,
    is_final,
)
from .settings import SETTING_NAMES, Settings, get_settings, meta_name, resolve

__all__ = [
    "OPTION_NAMES",
    "SAFE_METHODS",
    "SETTING_NAMES",
    "Fingerprint",
    "Idempotency",
    "Keywords",
    "OnceKeywords",
    "Settings",
    "UnleasedKeywords",
    "as_options",
    "for_methods",
    "get_settings",
    "is_final",
    "meta_name",
    "resolve",
]
