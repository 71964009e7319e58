"""A project with the access checks of other packages. Prints what became of each order, as JSON.

A process of its own: these packages have models, and so must be among the installed apps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import product
from typing import Any

import django
from django.conf import settings

PACKAGES = ("braces", "guardian", "oauth2_provider", "rules")
FOUND = [name for name in PACKAGES if find_spec(name) is not None]
TOKEN = "Bearer of-a-client"


def configure() -> None:
    settings.configure(
        SECRET_KEY="only for tests",
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": ":memory:",
                "OPTIONS": {"transaction_mode": "IMMEDIATE"},
            }
        },
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django_idempotency",
            *(name for name in FOUND if name != "braces"),
        ],
        AUTHENTICATION_BACKENDS=["django.contrib.auth.backends.ModelBackend"],
        ANONYMOUS_USER_NAME=None,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        SILENCED_SYSTEM_CHECKS=["guardian.W001"],
        ALLOWED_HOSTS=["testserver"],
        ROOT_URLCONF="tests.urls",
        MIGRATION_MODULES=dict.fromkeys(("auth", "contenttypes", *FOUND)),  # their tables without their history
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)


def checks() -> Iterator[tuple[str, Any]]:
    """Each decorator and each mixin, by name. All ask for the permission, or for the token."""
    from django.contrib.auth import decorators, mixins

    perm = "auth.view_user"
    asking = {"permission_required": perm, "raise_exception": True}
    yield "django permission_required", decorators.permission_required(perm, raise_exception=True)
    yield "django PermissionRequiredMixin", type("Check", (mixins.PermissionRequiredMixin,), asking)
    if "rules" in FOUND:
        from rules.contrib import views

        yield "rules permission_required", views.permission_required(perm, raise_exception=True)
        yield "rules PermissionRequiredMixin", type("Check", (views.PermissionRequiredMixin,), asking)
    if "guardian" in FOUND:
        from guardian.decorators import permission_required_or_403
        from guardian.mixins import PermissionRequiredMixin

        yield "guardian permission_required_or_403", permission_required_or_403(perm, accept_global_perms=True)
        asking_globally = {**asking, "accept_global_perms": True, "return_403": True}
        asking_globally["get_permission_object"] = lambda self: None
        yield "guardian PermissionRequiredMixin", type("Check", (PermissionRequiredMixin,), asking_globally)
    if "braces" in FOUND:
        from braces.views import PermissionRequiredMixin as Braces

        yield "braces PermissionRequiredMixin", type("Check", (Braces,), asking)
    if "oauth2_provider" in FOUND:
        from oauth2_provider.decorators import protected_resource
        from oauth2_provider.views.mixins import ProtectedResourceMixin

        yield "oauth2_provider protected_resource", protected_resource()
        yield "oauth2_provider ProtectedResourceMixin", ProtectedResourceMixin


def secret(request: Any) -> Any:
    from django.http import HttpResponse

    return HttpResponse("secret", status=201)


def post(self: Any, request: Any) -> Any:
    return secret(request)


def orders(check: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each way to put a check and the protection into an order, by name."""
    from django.utils.decorators import method_decorator
    from django.views import View

    from django_idempotency import idempotent
    from django_idempotency.views import IdempotencyMixin

    def of(*bases: type, **attributes: Any) -> Any:
        return type("Secret", (*bases, View), attributes)

    on_dispatch = method_decorator(idempotent, name="dispatch")
    protected_post = method_decorator(idempotent)(post)
    if isinstance(check, type):
        yield "right: the handler", lambda: of(check, post=protected_post).as_view()
        yield "right: the mixin first", lambda: of(IdempotencyMixin, check, post=post).as_view()
        yield "right: the mixin second", lambda: of(check, IdempotencyMixin, post=post).as_view()
        yield "wrong: dispatch", lambda: on_dispatch(of(check, post=post)).as_view()
        yield "wrong: the view", lambda: idempotent(of(check, post=post).as_view())
        return
    checked_post = method_decorator(check)(post)
    check_dispatch = method_decorator(check, name="dispatch")
    yield "right: a function", lambda: check(idempotent(secret))
    yield "right: one list", lambda: of(post=method_decorator([check, idempotent])(post)).as_view()
    yield "right: the handler", lambda: of(post=method_decorator(check)(protected_post)).as_view()
    yield "right: dispatch, then dispatch", lambda: check_dispatch(on_dispatch(of(post=post))).as_view()
    yield "right: dispatch, then the mixin", lambda: check_dispatch(of(IdempotencyMixin, post=post)).as_view()
    yield "wrong: a function", lambda: idempotent(check(secret))
    yield "wrong: one list", lambda: of(post=method_decorator([idempotent, check])(post)).as_view()
    yield "wrong: the handler", lambda: of(post=method_decorator(idempotent)(checked_post)).as_view()
    yield "wrong: dispatch over the handler", lambda: on_dispatch(of(post=checked_post)).as_view()
    yield "wrong: dispatch over dispatch", lambda: on_dispatch(check_dispatch(of(post=post))).as_view()
    yield "wrong: the mixin", lambda: of(IdempotencyMixin, post=checked_post).as_view()
    yield "wrong: the view", lambda: idempotent(of(post=checked_post).as_view())


def grant() -> Any:
    """A user with the permission, and a client's token."""
    from datetime import timedelta

    from django.contrib.auth.models import Permission, User
    from django.utils import timezone

    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="view_user", content_type__app_label="auth"))
    if "oauth2_provider" in FOUND:
        from oauth2_provider.models import AccessToken, Application

        client = Application.objects.create(client_type="confidential", authorization_grant_type="client-credentials")
        later = timezone.now() + timedelta(hours=1)
        AccessToken.objects.create(token=TOKEN.split()[1], application=client, user=user, expires=later)
    return user


def withdraw(user: Any) -> None:
    user.user_permissions.clear()
    if "oauth2_provider" in FOUND:
        from oauth2_provider.models import AccessToken, Application

        AccessToken.objects.all().delete()
        Application.objects.all().delete()


def outcome(make: Callable[[], Any]) -> Any:
    """The statuses of a first request, a retry, and a retry after the permission was withdrawn; or why not."""
    from django.contrib.auth.models import User
    from django.core.exceptions import PermissionDenied
    from django.test import RequestFactory

    from django_idempotency import IdempotencyConfigurationError
    from django_idempotency.models import IdempotencyKey

    def send() -> int:
        headers = {"Idempotency-Key": "k", "Authorization": TOKEN}
        request: Any = RequestFactory().post("/", headers=headers)
        request.user = User.objects.get(pk=user.pk)
        try:
            return int(callback(request).status_code)
        except PermissionDenied:
            return 403

    user = grant()
    try:
        callback = make()
        statuses = [send(), send()]
        withdraw(user)
        return [*statuses, send()]
    except IdempotencyConfigurationError as error:
        withdraw(user)
        return str(error).partition("\n")[0]
    finally:
        user.delete()
        IdempotencyKey.objects.all().delete()


def clients() -> dict[str, list[str]]:
    """What the header of a replay says, and the scopes: by tokens that name clients, with and without a user.

    The tokens are: the first of an application, a renewed one of the same application, one of another application.
    """
    from django.contrib.auth.models import AnonymousUser, User
    from django.http import HttpResponse
    from django.test import RequestFactory, override_settings
    from oauth2_provider.contrib.rest_framework import OAuth2Authentication
    from oauth2_provider.middleware import OAuth2ExtraTokenMiddleware, OAuth2TokenMiddleware
    from rest_framework.response import Response
    from rest_framework.views import APIView

    from django_idempotency import idempotent
    from django_idempotency.models import IdempotencyKey
    from django_idempotency.rest_framework import IdempotencyMixin

    class Order(IdempotencyMixin, APIView):
        authentication_classes = [OAuth2Authentication]

        def post(self, request: Any) -> Any:
            return Response(201)

    @idempotent
    def order(request: Any) -> Any:
        return HttpResponse(status=201)

    def without_user(get_response: Any) -> Any:
        def middleware(request: Any) -> Any:
            request.user = AnonymousUser()
            return get_response(request)

        return middleware

    ways: dict[str, tuple[Any, Any]] = {
        "REST framework": (Order.as_view(), None),
        "REST framework, with a user": (Order.as_view(), "ada"),
        "middleware": (without_user(OAuth2TokenMiddleware(order)), "bea"),
        "a middleware that keeps no token": (without_user(only_the_user(order)), "dan"),
        "both middlewares": (without_user(OAuth2TokenMiddleware(OAuth2ExtraTokenMiddleware(order))), "cleo"),
    }
    found: dict[str, list[str]] = {}
    backends = ["oauth2_provider.backends.OAuth2Backend"]
    for way, (view, name) in ways.items():
        user = None if name is None else User.objects.create_user(name)
        replayed = []
        for token, space in zip(tokens(user), " \t\t", strict=True):
            headers = {"Idempotency-Key": "k", "Authorization": f"Bearer{space}{token}"}
            with override_settings(AUTHENTICATION_BACKENDS=backends):
                replayed.append(view(RequestFactory().post("/", headers=headers))["Idempotency-Replayed"])
        scopes = sorted(set(IdempotencyKey.objects.values_list("scope", flat=True)))
        found[way] = [*replayed, *(re.sub(r"\d+", "N", scope) for scope in scopes)]
        IdempotencyKey.objects.all().delete()
    return found


def resources() -> dict[str, list[str]]:
    """What the header of a replay says, and the scopes: where the toolkit sets only the owner of the token.

    By each way to send a token: of ada's first token, a renewed one, one of another application, and bea's.
    """
    from django.contrib.auth.models import User
    from django.http import HttpResponse
    from django.test import RequestFactory
    from django.views import View
    from oauth2_provider.decorators import protected_resource
    from oauth2_provider.views.mixins import ProtectedResourceMixin

    from django_idempotency import idempotent
    from django_idempotency.models import IdempotencyKey
    from django_idempotency.views import IdempotencyMixin

    def post(self: Any, request: Any) -> Any:
        return HttpResponse(status=201)

    scopes = {"get_scopes": lambda self: [], "post": post}
    views = {
        "protected_resource": protected_resource()(idempotent(lambda request: HttpResponse(status=201))),
        "ProtectedResourceMixin": type("Resource", (IdempotencyMixin, ProtectedResourceMixin, View), scopes).as_view(),
    }
    ways: dict[str, Callable[[str], dict[str, Any]]] = {
        "header": lambda token: {"path": "/", "headers": {"Authorization": f"Bearer {token}"}},
        "TAB": lambda token: {"path": "/", "headers": {"Authorization": f"Bearer\t{token}"}},
        "form": lambda token: {"path": "/", "headers": {}, "data": {"access_token": token}},
    }
    found: dict[str, list[str]] = {}
    for (name, view), (way, sent) in product(views.items(), ways.items()):
        users = [User.objects.create_user(f"{name}-{way}-{number}") for number in range(2)]
        every = [*tokens(users[0]), next(tokens(users[1]))]
        # A form with another token is another request, which is refused, of the same caller.
        callers = []
        for token in every:
            request = sent(token)
            request["headers"]["Idempotency-Key"] = "k"
            view(RequestFactory().post(**request))
            callers.append(IdempotencyKey.objects.latest("pk").scope)
        first, renewed, foreign, stranger = callers
        same = ["renewed" if renewed == first else "", "foreign" if foreign == first else ""]
        found[f"{name}, {way}"] = [*same, "stranger" if stranger == first else "", re.sub(r"\d+", "N", first)]
        IdempotencyKey.objects.all().delete()
    return found


def upgraded() -> dict[str, int]:
    """How often a view runs for a request and its retry, if 0.4.0 has stored the key of the first one."""
    from hashlib import sha256

    from django.contrib.auth.models import AnonymousUser, User
    from django.http import HttpResponse
    from django.test import RequestFactory
    from oauth2_provider.contrib.rest_framework import OAuth2Authentication
    from oauth2_provider.decorators import protected_resource
    from oauth2_provider.models import AccessToken
    from rest_framework.views import APIView

    from django_idempotency import idempotent
    from django_idempotency.engine.protocol.digests import identify
    from django_idempotency.models import IdempotencyKey
    from django_idempotency.rest_framework import IdempotencyMixin

    runs: list[None] = []

    def order(*args: Any) -> Any:
        runs.append(None)
        return HttpResponse(status=201)

    class Order(IdempotencyMixin, APIView):
        authentication_classes = [OAuth2Authentication]
        post = order

    def of_the_header(user: Any, client: Any, token: str) -> str:
        return f"authorization:{sha256(f'bearer {token}'.encode()).hexdigest()}"

    def of_the_client(user: Any, client: Any, token: str) -> str:
        acts = f"application:oauth2_provider.Application:{client.pk}"
        return acts if user is None else f"for:user:auth.User:{user.pk}+{acts}"

    def anonymous(user: Any, client: Any, token: str) -> str:
        return "anonymous"

    ada, resource = User.objects.create_user("before"), protected_resource()(idempotent(order))
    middleware = only_the_user(idempotent(order))
    ways: dict[str, tuple[Any, Any, str, Any]] = {
        "REST framework": (Order.as_view(), None, "header", of_the_client),
        "REST framework, with a user": (Order.as_view(), ada, "header", of_the_client),
        "a middleware": (middleware, ada, "header", of_the_client),
        "protected_resource": (resource, ada, "header", of_the_header),
        "protected_resource, with the token in the form": (resource, ada, "form", anonymous),
    }
    found = {}
    for way, (view, user, place, scope_then) in ways.items():
        AccessToken.objects.all().delete()
        token = next(tokens(user))
        client = AccessToken.objects.get(token=token).application
        for retry in (False, True):
            headers = {"Idempotency-Key": "k"} | ({"Authorization": f"Bearer {token}"} if place == "header" else {})
            request = RequestFactory().post("/", {"access_token": token} if place == "form" else None, headers=headers)
            request.user = AnonymousUser()
            view(request)
            if not retry:
                row = IdempotencyKey.objects.get()
                then = identify(scope=scope_then(user, client, token), operation=row.operation, key=row.key)
                IdempotencyKey.objects.update(scope=then.scope, scope_hash=then.scope_hash)
        found[way] = len(runs)
        runs.clear()
        IdempotencyKey.objects.all().delete()
    return found


def only_the_user(get_response: Any) -> Any:
    """As with a subclass of the package's backend, and an authenticator that returns the token's user."""

    def middleware(request: Any) -> Any:
        from oauth2_provider.oauth2_backends import get_oauthlib_core

        request.user = get_oauthlib_core().verify_request(request, scopes=[])[1].user
        return get_response(request)

    return middleware


def tokens(user: Any) -> Iterator[str]:
    """A first and a renewed token of one application, and a token of another."""
    from datetime import timedelta

    from django.utils import timezone
    from oauth2_provider.models import AccessToken, Application

    later = timezone.now() + timedelta(hours=1)
    one, other = (Application.objects.create(authorization_grant_type="client-credentials") for _ in range(2))
    for name, client in (("first", one), ("renewed", one), ("foreign", other)):
        yield AccessToken.objects.create(token=f"{name}-{user}", application=client, user=user, expires=later).token


if __name__ == "__main__":
    configure()
    found: dict[str, Any] = {name: {order: outcome(make) for order, make in orders(check)} for name, check in checks()}
    if "oauth2_provider" in FOUND and find_spec("rest_framework") is not None:
        found["clients"] = clients()
        found["resources"] = resources()
        found["upgraded"] = upgraded()
    print(json.dumps(found))
