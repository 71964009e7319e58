"""What can be known, before the first request, about the code that identifies the caller?

Only annotations and the names in the code are read. This is too little to judge most authenticators. They are checked
on the first request, and the log says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import isfunction
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from django.db.models import Model

from ..engine.declare.wrappers import dotted_name, innermost, unwrapped

JWT_LIBRARIES = frozenset({"authlib", "jose", "joserfc", "jwcrypto", "jwt"})
"""The packages with which projects check JSON Web Tokens."""
HELPERS = 2
"""How many levels of calls are followed from an authenticator into the functions that its code names."""


def authenticators_of(callback: Any, target: Any) -> list[Any]:
    """Return the REST framework's authentication classes of a view, or the authenticators of Django Ninja's operation.

    Args:
        callback: the URL's callback.
        target: what is protected.
    """
    view = next((level for level in unwrapped(callback) if hasattr(level, "cls")), None)
    chosen = getattr(view, "initkwargs", {}).get("authentication_classes")
    classes: Any = chosen or getattr(getattr(view, "cls", None), "authentication_classes", ())
    return [*getattr(target, "auth_callbacks", ()), *classes]


def strangers(authenticators: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs of an authenticator and its user class.

    The authenticator checks a JWT, and returns a user without a token. No table contains these users.
    """
    for authenticator in authenticators:
        check = getattr(authenticator, "authenticate", authenticator)
        if any(_is_library(value) for _, value in _named(check)):
            yield from ((dotted_name(authenticator), dotted_name(user)) for user in _users(check) if _is_stranger(user))


def bare_token_checks(callback: Any) -> Iterator[str]:
    """Yield the name of each function that decodes a JWT: a decorator of the view, or the view itself.

    Nothing is yielded if the code of the view or of any decorator mentions `user`.
    """
    named = {level: dict(_named(level)) for level in unwrapped(callback) if isfunction(level)}
    if not any("user" in names for names in named.values()):
        for level, names in named.items():
            if "decode" in names and any(map(_is_library, names.values())):
                yield f"{level.__globals__['__name__']}.{level.__code__.co_qualname.partition('.<locals>')[0]}"


def _users(check: Callable[..., Any]) -> Iterator[Any]:
    """Yield each user class that the return annotation contains without a token: `User` or `tuple[User, None]`."""
    hint: Any = None
    with suppress(Exception):  # an annotation may name something that can't be resolved
        hint = get_type_hints(innermost(getattr(check, "__func__", check))).get("return")
    for part in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        user, *rest = get_args(part) if get_origin(part) is tuple else (part,)
        if isinstance(user, type) and all(each in (None, NoneType) for each in rest):
            yield user


def _is_stranger(user: type) -> bool:
    if _is_anonymous(user) or issubclass(user, Model):
        return False
    return _has(user, "is_authenticated") and not _has(user, "token")


def _is_anonymous(user: type) -> bool:
    """The class is compared by name, because it can't be imported in a project without `django.contrib.auth`."""
    return any(dotted_name(base) == "django.contrib.auth.models.AnonymousUser" for base in user.__mro__)


def _has(user: type, attribute: str) -> bool:
    """Return whether a class, or its `__init__`, sets an attribute."""
    for base in user.__mro__:
        made = getattr(vars(base).get("__init__"), "__code__", None)
        if attribute in {*vars(base), *vars(base).get("__dataclass_fields__", ()), *(made.co_names if made else ())}:
            return True
    return False


def _named(function: Any, depth: int = HELPERS) -> Iterator[tuple[str, Any]]:
    """Yield the names in a function's code with their global values. The functions that it uses are included."""
    function = getattr(function, "__func__", function)
    code, values = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    for name in code.co_names if code else ():
        yield name, (value := values.get(name))
        if depth and isfunction(value):
            yield from _named(value, depth - 1)


def _is_library(value: Any) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(home).partition(".")[0] in JWT_LIBRARIES
