"""Where the protection refuses to stand: above what may decide who the caller is.

The checks of other packages are in tests/callers/test_access_packages.py.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required, login_required, permission_required, user_passes_test
from django.contrib.auth.mixins import LoginRequiredMixin
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import decorator_from_middleware, method_decorator
from django.views import View
from django.views.decorators import cache, clickjacking, common, csrf, debug, gzip, http, vary

from django_idempotency import Idempotency, IdempotencyConfigurationError, idempotent
from django_idempotency.checks import check_urls
from django_idempotency.views import IdempotencyMixin
from tests.callers.placement_urls import Above, Private, view
from tests.shopapp.models import Order

CHECK = permission_required("shop.add_order")


def traced(function: Any) -> Any:
    """A decorator of the project that does nothing."""

    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


class Traced:
    """The same as a class."""

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function

    def __call__(self, request: HttpRequest) -> Any:
        return self.__wrapped__(request)


class Tracing:
    """The same as a middleware."""

    def __init__(self, get_response: Any) -> None: ...


by_middleware = decorator_from_middleware(Tracing)
shared = user_passes_test(lambda user: True)


def disguised(function: Any) -> Any:
    """A wrapper with the name and the module of a harmless one."""
    wrapper = traced(function)
    wrapper.__qualname__, wrapper.__module__ = "csrf_exempt.<locals>._view_wrapper", csrf.__name__
    return wrapper


async def asynchronous(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ran")


def refused(act: Callable[[], Any]) -> str:
    with pytest.raises(IdempotencyConfigurationError) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (login_required(view), "    @login_required\n    @idempotent\n"),
        (
            CHECK(view),
            "sits above django.contrib.auth.decorators.user_passes_test, which may decide who may call view",
        ),
        (traced(view), "IDEMPOTENCY = {'HARMLESS_DECORATORS': ['tests.callers.test_placement.traced']}"),
        (csrf.csrf_exempt(traced(view)), f"sits above {__name__}.traced"),
        (traced(view), "If it lets a request pass only once, as a captcha or a one-time password does, call it inside"),
        (traced(asynchronous), f"sits above {__name__}.traced"),
        (disguised(view), f"sits above {__name__}.traced"),
        (Traced(view), f"sits above {__name__}.Traced"),
        (by_middleware(view), f"sits above {__name__}.Tracing"),
        (csrf.csrf_protect(view), "sits above django.middleware.csrf.CsrfViewMiddleware"),
        (cache.cache_page(60)(view), "sits above django.middleware.cache.CacheMiddleware"),
        (gzip.gzip_page(view), "GZipMiddleware, which a replay would miss or get wrong: the client, or a middleware"),
        (clickjacking.xframe_options_exempt(view), "xframe_options_exempt, which a replay would miss or get wrong"),
        (csrf.ensure_csrf_cookie(asynchronous), "csrf._EnsureCsrfCookie, which a replay would miss or get wrong"),
        (lru_cache(view), "sits above functools._lru_cache_wrapper"),
        (Private.as_view(), "LoginRequiredMixin.dispatch, which may check who is calling. Put it on the handler"),
        (View, 'Use @method_decorator(idempotent, name="post")'),
        (staticmethod(view), "is not one"),
        ("view", "is not one"),
    ],
)
def test_it_refuses_at_decoration(target: Any, message: str) -> None:
    """With the right order printed. No setting is proposed for a decorator of Django."""
    told = refused(lambda: idempotent(target))
    assert message in told
    assert ("HARMLESS_DECORATORS" in told) is (f"sits above {__name__}" in told or "functools" in told)


DJANGOS = [
    cache.never_cache,
    cache.cache_control(private=True),
    clickjacking.xframe_options_deny,
    clickjacking.xframe_options_sameorigin,
    common.no_append_slash,
    csrf.csrf_exempt,
    debug.sensitive_post_parameters(),
    debug.sensitive_variables(),
    http.condition(),
    http.conditional_page,
    http.etag(lambda request: "x"),
    http.last_modified(lambda request: None),
    http.require_GET,
    http.require_POST,
    http.require_safe,
    http.require_http_methods(["PUT"]),
    login_not_required,
    transaction.non_atomic_requests,
    vary.vary_on_cookie,
    vary.vary_on_headers("Accept"),
]


@pytest.mark.parametrize("function", [view, asynchronous])
@pytest.mark.parametrize("decorator", DJANGOS)
def test_decorators_of_django_that_decide_nothing_may_stand_below(decorator: Any, function: Any) -> None:
    """Also for methods, in each of Django's ways. They run once, like the view."""
    assert idempotent(decorator(function)).__name__ == function.__name__
    on_method = method_decorator([csrf.csrf_exempt, decorator])(lambda self, request: HttpResponse())
    type("Allowed", (IdempotencyMixin, View), {"post": on_method}).as_view()


def test_the_policies_of_django_6_stand_above() -> None:
    """They are attributes of a response, which no table keeps."""
    csp = pytest.importorskip("django.views.decorators.csp", reason="Django 6.0 and newer")
    for decorator in (csp.csp_override({}), csp.csp_report_only_override({})):
        on_method = method_decorator(decorator)(lambda self, request: HttpResponse())
        for wrong in (partial(idempotent, decorator(view)), partial(idempotent, decorator(asynchronous))):
            assert "csp._make_csp_decorator, which a replay would miss or get wrong" in refused(wrong)
        told = refused(type("Refused", (IdempotencyMixin, View), {"post": on_method}).as_view)
        assert "csp._make_csp_decorator, which a replay would miss or get wrong" in told


@pytest.mark.parametrize("decorator", [transaction.atomic, transaction.atomic(using="other"), sync_to_async, partial])
def test_other_wrappers_that_decide_nothing_may_stand_below(decorator: Any) -> None:
    """Of the database, of asgiref, of Python."""
    idempotent(decorator(view))


class Checking:
    """A view that is an object, and whose method checks the caller."""

    __call__ = method_decorator(CHECK)(lambda self, request: HttpResponse("ran"))


@pytest.mark.parametrize(
    ("inner", "below"), [(Private.as_view(), "LoginRequiredMixin.dispatch"), (Checking(), "user_passes_test")]
)
def test_a_check_is_found_inside_a_partial_and_an_object(inner: Any, below: str) -> None:
    """A replay would skip it."""
    for made in (inner, partial(inner), csrf.csrf_exempt(partial(inner))):
        told = refused(lambda: idempotent(made))  # noqa: B023 (called at once)
        assert f"{below}, which may" in told


def test_tracing_packages_may_put_a_proxy_around_a_view() -> None:
    """And what the proxy wraps is looked at all the same."""
    wrapt = pytest.importorskip("wrapt")

    def proxied(function: Any) -> Any:
        return wrapt.FunctionWrapper(function, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))

    idempotent(proxied(view))
    assert "user_passes_test" in refused(lambda: idempotent(proxied(login_required(view))))


def test_the_projects_own_decorators_are_named_in_a_setting(settings: Any) -> None:
    """By the names that the refusal has told: functions, classes, and the class of a middleware."""
    settings.IDEMPOTENCY = {"HARMLESS_DECORATORS": [f"{__name__}.{name}" for name in ("traced", "Traced", "Tracing")]}
    for decorate in (traced, Traced, by_middleware):
        idempotent(decorate(view))
    # Another name for it allows nothing, because all decorators that are made there would be allowed, too.
    settings.IDEMPOTENCY = {"HARMLESS_DECORATORS": [f"{__name__}.shared", f"{__name__}.by_middleware"]}
    assert "sits above django.contrib.auth.decorators.user_passes_test" in refused(lambda: idempotent(shared(view)))
    assert f"sits above {__name__}.Tracing" in refused(lambda: idempotent(by_middleware(view)))


def test_it_refuses_a_handler_of_a_safe_method() -> None:
    """There is nothing to protect. A function may be called get."""

    def get(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert idempotent(get).__name__ == "get"
    assert "safe method" in refused(lambda: type("Wrong", (View,), {"get": idempotent(Safe.get)}))


class Safe(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def test_it_refuses_ninjas_bound_operations() -> None:
    """Known by their module, without importing it."""

    class Operation:
        def run(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    Operation.__module__ = "ninja.operation"
    assert "Ninja" in refused(lambda: idempotent(Operation().run))


# --- classes


def handlers(**attributes: Any) -> Any:
    return type("Orders", (View,), {"post": lambda self, request: HttpResponse("ran"), **attributes})


class Own:
    def dispatch(self, request: HttpRequest) -> Any:
        return super().dispatch(request)  # type: ignore[misc]


class Answering(View):
    """Without handlers: the dispatch is the view."""

    def dispatch(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ran")


class PrivateDispatch(LoginRequiredMixin, View):
    @idempotent
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


class OwnProtected(View):
    """Its instance is the first argument."""

    @idempotent(required=False)
    def dispatch(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ran")


async def apost(self: Any, request: HttpRequest) -> HttpResponse:
    return HttpResponse("ran")


ON_DISPATCH = method_decorator(idempotent(required=False), name="dispatch")


@pytest.mark.parametrize(
    ("make", "below"),
    [
        (lambda: ON_DISPATCH(type("Orders", (Own, handlers()), {})), f"{__name__}.Own.dispatch"),
        (lambda: ON_DISPATCH(handlers(dispatch=Own.dispatch)), f"{__name__}.Own.dispatch"),
        (lambda: ON_DISPATCH(type("Orders", (Own, Answering), {})), f"{__name__}.Own.dispatch"),
        (lambda: ON_DISPATCH(handlers(patch=method_decorator(CHECK)(view))), "user_passes_test"),
        (lambda: ON_DISPATCH(handlers(patch=method_decorator(partial(CHECK))(view))), "user_passes_test"),
        (lambda: ON_DISPATCH(handlers(post=traced(handlers().post))), f"{__name__}.traced"),
        (lambda: ON_DISPATCH(method_decorator(CHECK, name="dispatch")(handlers())), "user_passes_test"),
        (lambda: method_decorator([idempotent, CHECK], name="dispatch")(handlers()), "user_passes_test"),
        (lambda: Above, "dispatch of Above above django.contrib.auth.mixins.LoginRequiredMixin.dispatch"),
        (lambda: PrivateDispatch, f"dispatch of PrivateDispatch above {__name__}.PrivateDispatch.dispatch"),
        (lambda: ON_DISPATCH(handlers(post=apost)), "dispatch of the asynchronous view Orders"),
    ],
)
@pytest.mark.django_db
def test_a_dispatch_that_may_check_is_refused_below_the_decorator(rf: Any, make: Any, below: str) -> None:
    """Nothing is known of it, and a decorator on the handler is as good. The view does not run."""
    assert below in refused(lambda: make().as_view()(rf.post("/", headers={"Idempotency-Key": "k"})))
    assert Order.objects.count() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ON_DISPATCH(handlers()),
        lambda: ON_DISPATCH(method_decorator(cache.never_cache, name="dispatch")(handlers())),
        lambda: ON_DISPATCH(Answering),
        lambda: ON_DISPATCH(type("Answers", (Answering,), {})),
        lambda: ON_DISPATCH(handlers(get=method_decorator(CHECK)(view))),
        lambda: type("Orders", (Own, ON_DISPATCH(handlers())), {}),
        lambda: OwnProtected,
    ],
)
def test_a_dispatch_that_checks_nothing_may_stand_below(rf: Any, make: Any) -> None:
    """Also the check of a safe method, and any dispatch above the protected one."""
    assert make().as_view()(rf.post("/")).content == b"ran"


@pytest.mark.parametrize("decorate", [lambda cls: cls, method_decorator(cache.never_cache, name="dispatch")])
def test_the_result_of_as_view_can_be_decorated(rf: Any, decorate: Any) -> None:
    """If nothing in the class may check. Django copies to it what decorators have set on `dispatch`."""
    assert idempotent(required=False)(decorate(handlers()).as_view())(rf.post("/")).content == b"ran"
    assert "Own.dispatch" in refused(lambda: idempotent(decorate(handlers(dispatch=Own.dispatch)).as_view()))


# --- what is not known at decoration is found by the system check, and refused before the view runs

checked_post = method_decorator(CHECK)(lambda self, request: HttpResponse("ran"))
Decorated = type("Decorated", (View,), {"post": method_decorator(idempotent)(checked_post)})
OneList = type("OneList", (View,), {"post": method_decorator([idempotent, CHECK])(handlers().post)})
Right = type("Right", (View,), {"post": method_decorator(CHECK)(method_decorator(idempotent)(handlers().post))})
RightList = type("RightList", (View,), {"post": method_decorator([CHECK, idempotent])(handlers().post)})
NotProtected = type("NotProtected", (IdempotencyMixin, View), {"post": checked_post, "idempotency": None})
by_put = {"put": handlers().post, "idempotency": {"methods": {"PUT"}}}
OtherMethod = type("OtherMethod", (IdempotencyMixin, View), {"post": checked_post, **by_put})
ROUTES = (Decorated, OneList, Right, RightList, NotProtected, OtherMethod, handlers())
urlpatterns = [*(path(route.__name__, route.as_view()) for route in ROUTES), path("function", idempotent(view))]


@pytest.mark.urls(__name__)
def test_e006_finds_checked_handlers(rf: Any) -> None:
    """Below the decorator; not where nothing is protected."""
    messages = [*check_urls()]
    assert [message.id for message in messages] == ["django_idempotency.E006"] * 2
    for message, route in zip(messages, (Decorated, OneList), strict=True):
        assert "idempotent sits above django.contrib.auth.decorators.user_passes_test" in message.msg
        assert "user_passes_test" in refused(lambda route=route: route.as_view()(rf.post("/")))


def test_a_mixin_refuses_a_checked_handler(rf: Any) -> None:
    """Where the handler is protected; else any order is right, and the check asks the user."""
    mixed = lambda: type("Mixed", (IdempotencyMixin, View), {"post": checked_post})  # noqa: E731 (one sentence)
    assert "IdempotencyMixin sits above" in refused(lambda: mixed().as_view()(rf.post("/")))
    for make in (NotProtected, OtherMethod):
        request = rf.post("/")
        request.user = None
        with pytest.raises(AttributeError):
            make.as_view()(request)


def checked_urls(monkeypatch: pytest.MonkeyPatch, settings: Any, view: Any) -> list[str | None]:
    views = types.ModuleType("views")
    views.urlpatterns = [path("", view)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "views_of_this_test", views)
    settings.ROOT_URLCONF = "views_of_this_test"
    return [message.id for message in check_urls()]


@pytest.mark.parametrize(
    "options", [{}, {"idempotency_actions": {"create": None}}, {"idempotency": {"methods": ["PUT"]}}]
)
def test_the_mixin_of_the_rest_framework_refuses_a_checked_action(
    rf: Any, monkeypatch: pytest.MonkeyPatch, settings: Any, options: Any
) -> None:
    """Before the handler runs, unless the action is not protected: then the check asks the user."""
    viewsets = pytest.importorskip("rest_framework.viewsets")
    from django_idempotency.rest_framework import IdempotencyMixin

    attributes = {"create": checked_post, "authentication_classes": [], **options}

    def route() -> Any:
        viewset = type("Orders", (IdempotencyMixin, viewsets.ViewSet), {"update": handlers().post, **attributes})
        return viewset.as_view({"post": "create", "put": "update"})

    if options:
        assert route()(rf.post("/")).status_code == 302
        assert checked_urls(monkeypatch, settings, route()) == []
    else:
        assert "permission_classes" in refused(lambda: route()(rf.post("/")))


def test_options_that_contradict_each_other_are_e007(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """And not an error of the check."""
    attributes = {"post": checked_post, "idempotency": Idempotency(on_abandoned="hold")}
    impossible = type("Impossible", (IdempotencyMixin, View), attributes)
    assert checked_urls(monkeypatch, settings, impossible.as_view()) == ["django_idempotency.E007"]
