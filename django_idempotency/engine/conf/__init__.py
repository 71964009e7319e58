"""Options of protected endpoints, and the project's `IDEMPOTENCY` setting."""

from .fingerprint import Fingerprint
from .keywords import Keywords, OnceKeywords, UnleasedKeywords
from .options import OPTION_NAMES, SAFE_METHODS, Idempotency, as_options, for_methods, is_final
from .project_settings import SETTING_NAMES, Settings, get_settings, meta_name
from .resolving import resolve

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
