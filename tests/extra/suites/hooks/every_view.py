"""Protect every view that a framework's own tests call, and send a fresh key with every unsafe request."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import uuid4

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.admin.sites import AdminSite
from django.contrib.auth import decorators
from django.core.handlers.base import BaseHandler
from django.test import AsyncRequestFactory, RequestFactory, SimpleTestCase
from watching import MODE, View, watched

from django_idempotency import Idempotency, IdempotencyConfigurationError, idempotent
from django_idempotency.engine.declare.wrappers import unknown_wrapper
from django_idempotency.views import IdempotencyMixin

UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
OPTIONS = Idempotency(methods=UNSAFE, required=False)


def install() -> None:
    """Must be called before the tests are imported."""
    if MODE != "bare":
        SimpleTestCase.databases = {"default"}  # it forbids queries, and the package needs its own
        _send_keys()
        _protect_resolved_views()
        _protect_below_login_checks()


def _send_keys() -> None:
    environ_of, scope_of = RequestFactory._base_environ, AsyncRequestFactory._base_scope

    def environ_with_key(self: Any, **request: Any) -> Any:
        environ = environ_of(self, **request)
        if environ["REQUEST_METHOD"] in UNSAFE:
            environ.setdefault("HTTP_IDEMPOTENCY_KEY", str(uuid4()))
        return environ

    def scope_with_key(self: Any, **request: Any) -> Any:
        scope = scope_of(self, **request)
        if scope["method"] in UNSAFE:
            scope["headers"].append((b"idempotency-key", str(uuid4()).encode()))
        return scope

    RequestFactory._base_environ = environ_with_key
    AsyncRequestFactory._base_scope = scope_with_key


def _protect_resolved_views() -> None:
    resolve_request = BaseHandler.resolve_request

    def resolve_and_protect(self: Any, request: Any) -> Any:
        match = resolve_request(self, request)
        if not hasattr(match.func, "cls"):  # the classes of the REST framework have the mixin
            match.func = _protected(match.func, request)
        return match

    BaseHandler.resolve_request = resolve_and_protect


def _protected(view: View, request: Any) -> View:
    try:
        return watched(idempotent(OPTIONS)(view))
    except IdempotencyConfigurationError:
        # The view has a check of who is calling, and the package refuses to stand above the check. So it stands below.
        view_class = getattr(view, "view_class", None)
        handler = getattr(view_class, request.method.lower(), None)
        if view_class is None or any(unknown_wrapper(checked) is not None for checked in (view, handler) if checked):
            request.protect_below = True
            return view
        return _protected_class(view_class).as_view(**view.view_initkwargs)


def _protected_class(view_class: Any) -> Any:
    """The view class with the mixin. What its protected handler answers is watched, and not what the view answers.

    A retry runs the decorators and checks of `dispatch` again, and they may answer it in another way. For example, a
    login makes a new CSRF token, so `csrf_protect` adds a cookie and `Vary: Cookie` to the first answer alone.
    """

    def dispatch(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        verb = request.method.lower()
        if verb in vars(self):  # the mixin has put the protected handler there
            setattr(self, verb, watched(vars(self)[verb]))
        return view_class.dispatch(self, request, *args, **kwargs)

    vars(dispatch).update(vars(view_class.dispatch))  # Django reads there what decorators have set
    watching = type(view_class.__name__, (view_class,), {"dispatch": dispatch})
    return type(view_class.__name__, (IdempotencyMixin, watching), {"idempotency": OPTIONS})


def _protect_below_login_checks() -> None:
    """`login_required`, the admin and the like protect the view that they wrap, if the request asks for that."""
    admin_view = AdminSite.admin_view

    def admin_view_that_protects(self: Any, view: View, cacheable: bool = False) -> View:
        return admin_view(self, _protected_on_demand(view), cacheable)

    AdminSite.admin_view = admin_view_that_protects
    user_passes_test = decorators.user_passes_test

    def user_passes_test_and_protects(*args: Any, **kwargs: Any) -> Callable[[View], View]:
        decorate = user_passes_test(*args, **kwargs)
        return lambda view: decorate(_protected_on_demand(view))

    decorators.user_passes_test = user_passes_test_and_protects


def _protected_on_demand(view: View) -> View:
    try:
        protected = watched(idempotent(OPTIONS)(view))
    except IdempotencyConfigurationError:
        return view  # another login check, whose own view is protected

    @wraps(view)
    def either(request: Any, *args: Any, **kwargs: Any) -> Any:
        asked = vars(request).pop("protect_below", False)
        return (protected if asked else view)(request, *args, **kwargs)

    return markcoroutinefunction(either) if iscoroutinefunction(view) else either
