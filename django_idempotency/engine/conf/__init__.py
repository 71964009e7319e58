"""Options of protected endpoints, and the project's `IDEMPOTENCY` setting."""

from .keywords import Keywords, OnceKeywords, UnleasedKeywords
from .options import OPTION_NAMES, SAFE_METHODS, UNSET, Idempotency, as_options, is_final
from .project import SETTING_NAMES, Settings, settings
from .resolving import resolve

__all__ = [
    "OPTION_NAMES",
    "SAFE_METHODS",
    "SETTING_NAMES",
    "UNSET",
    "Idempotency",
    "Keywords",
    "OnceKeywords",
    "Settings",
    "UnleasedKeywords",
    "as_options",
    "is_final",
    "resolve",
    "settings",
]
