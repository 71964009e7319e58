"""`list_endpoints()` and `manage.py idempotency_endpoints`."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.urls import clear_url_caches
from django.urls import path as django_path
from django.urls import resolve as resolve_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.http import require_POST

from django_idempotency import IdempotencyConfigurationError, idempotent
from django_idempotency.endpoints import list_endpoints
from django_idempotency.endpoints.formats import path
from django_idempotency.endpoints.listing import mode
from django_idempotency.endpoints.specification import key_format, key_pattern, lifetime
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.key_syntax import InvalidKey, parse_header
from django_idempotency.keys import from_form_field
from django_idempotency.views import IdempotencyMixin

URLS = "tests.integration.endpoint_urls"


def found(prefix: str, urlconf: str = URLS) -> dict[str, list[str]]:
    """Route to methods, a protected one with a star."""
    listed: dict[str, list[str]] = {}
    for endpoint in list_endpoints(urlconf):
        if endpoint.route.startswith(prefix):
            route = endpoint.route.removeprefix(prefix)
            listed.setdefault(route, []).append(endpoint.method + "*" * endpoint.protected)
    return listed


@pytest.fixture
def urlconf(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A URLconf of these routes."""

    def make(**views: Any) -> str:
        module: Any = ModuleType("listed_urls")
        module.urlpatterns = [django_path(name, view) for name, view in views.items()]
        monkeypatch.setitem(sys.modules, "listed_urls", module)
        clear_url_caches()  # resolvers are cached by the name of the URLconf
        return "listed_urls"

    return make


class TestWalker:
    def test_functions(self) -> None:
        """By decorator, under wrappers; the methods where require_http_methods and its like tell them."""
        assert found("f/") == {
            "bare": ["ANY"],
            "decorated": ["PATCH*", "POST*"],
            "wrapped": ["POST*"],
            "shown": ["POST*"],
            "hidden": ["POST"],
            "three": ["DELETE", "POST*"],
            "both": ["POST"],
            "less": ["POST"],
            "condition": ["POST"],
            "partial": ["POST*"],
            "async": ["POST*"],
            "object": ["PATCH*", "POST*"],
            "above": ["PATCH*", "POST*"],
        }

    def test_classes(self) -> None:
        """By handler, by dispatch, also of a base class, and as a whole."""
        assert found("c/") == {
            "plain": ["POST"],
            "handler": ["POST*", "PUT*", "PATCH*", "DELETE"],
            "limited": ["PUT*"],
            "async": ["POST*", "PUT"],
            "dispatch": ["POST*", "DELETE"],
            "inherits": ["POST*", "DELETE"],
            "whole": ["POST*"],
            "later": ["POST*", "DELETE"],
        }

    def test_the_mixin_of_plain_django(self, urlconf: Any) -> None:
        """The class's options, its initkwargs, None, and a view that decides for each request."""

        class Mixed(IdempotencyMixin, View):
            idempotency = {"ttl": 60}

            def post(self, request: Any) -> Any: ...

            def put(self, request: Any) -> Any: ...

        class Dynamic(Mixed):
            def get_idempotency_options(self) -> Any: ...

        class Single(Mixed):
            idempotency = None

            @idempotent
            def post(self, request: Any) -> Any: ...

        @method_decorator(idempotent(ttl=7), name="dispatch")
        class Whole(Single):
            post = Mixed.post

        urls = urlconf(
            whole=Whole.as_view(),
            mixed=Mixed.as_view(),
            given=Mixed.as_view(idempotency={"ttl": 5}),
            none=Mixed.as_view(idempotency=None),
            dynamic=Dynamic.as_view(),
            single=Single.as_view(),
        )
        assert [
            (e.route, e.options and e.options.ttl_seconds, e.note) for e in list_endpoints(urls) if e.method == "POST"
        ] == [
            ("whole", 7, ""),
            ("mixed", 60, ""),
            ("given", 5, ""),
            ("none", None, ""),
            ("dynamic", 60, "decided for each request"),
            ("single", 86400, ""),
        ]
        assert not any(e.protected for e in list_endpoints(urls) if e.method == "PUT")

    def test_django_ninja(self) -> None:
        """By operation, with the options of function, router and API."""
        pytest.importorskip("ninja")
        listed = list_endpoints("tests.ninja.api_urls")
        shown = {(e.method, e.route): e for e in listed if e.view.startswith("tests.")}
        assert shown["POST", "orders"].view == "tests.ninja.api_urls.create"
        assert shown["POST", "leased"].mode == "leased"
        unprotected = [key for key, endpoint in shown.items() if not endpoint.protected]
        assert unprotected == [("PUT", "async/unprotected"), ("PUT", "decorated/router/put")]
        assert shown["PUT", "put"].protected
        ttl = {route: e.options and e.options.ttl_seconds for (_, route), e in shown.items()}
        assert (ttl["decorated/api"], ttl["decorated/router/inherits"], ttl["decorated/router/own"]) == (30, 60, 60)
        options = shown["POST", "decorated/router/own"].options
        assert options
        assert (options.store_body, options.wait_seconds) == (False, 1)

    def test_django_ninja_without_a_decorator(self, urlconf: Any) -> None:
        """Safe methods are not listed; an operation that is not protected is."""
        ninja = pytest.importorskip("ninja")
        api = ninja.NinjaAPI(urls_namespace="undecorated", docs_url=None)
        api.api_operation(["GET", "DELETE"], "thing")(lambda request: None)
        listed = list_endpoints(urlconf(**{"x/": api.urls}))
        assert [(e.method, e.route, e.protected) for e in listed if "thing" in e.route] == [
            ("DELETE", "x/thing", False)
        ]

    def test_routes_and_names_are_those_of_a_resolver_match(self, settings: Any) -> None:
        """Nested regular expressions, and namespaces in front of the name."""
        settings.ROOT_URLCONF = URLS
        listed = {(endpoint.route, endpoint.name) for endpoint in list_endpoints()}
        for url in ("/o/1/x/", "/o/1/y/bare", "/f/bare"):
            match = resolve_path(url)
            assert (match.route, match.view_name if match.url_name else "") in listed
        assert (r"^o/(?P<pk>[0-9]+)/x/$", "x") in listed
        assert (r"^o/(?P<pk>[0-9]+)/y/bare", "f:bare") in listed

    def test_views_have_their_dotted_names(self) -> None:
        """Of the function below all decorators, of the class, of an object's class."""
        views = {endpoint.route: endpoint.view for endpoint in list_endpoints(URLS)}
        assert views["f/wrapped"] == views["f/partial"] == f"{URLS}.bare"
        assert views["f/object"] == views["f/above"] == f"{URLS}.Callable"
        assert views["c/whole"] == f"{URLS}.Plain"

    def test_options_are_resolved(self) -> None:
        """Each handler's own, over the defaults."""
        by_handler = {e.method: e.options for e in list_endpoints(URLS) if e.route == "c/handler" and e.options}
        assert (by_handler["POST"].ttl_seconds, by_handler["PUT"].ttl_seconds) == (60, 86400)
        assert [by_handler[method].required for method in ("POST", "PUT", "PATCH")] == [True, True, False]

    def test_switched_off_is_not_protected(self, settings: Any) -> None:
        """IDEMPOTENCY["ENABLED"] is one setting away from production."""
        settings.IDEMPOTENCY = {"ENABLED": False}
        listed = [endpoint for endpoint in list_endpoints(URLS) if endpoint.route == "f/wrapped"]
        assert [(endpoint.protected, endpoint.note) for endpoint in listed] == [
            (False, "IDEMPOTENCY['ENABLED'] is False")
        ]

    def test_impossible_options_are_told(self, settings: Any) -> None:
        """As on the first request."""
        settings.IDEMPOTENCY = {"TLT": 1}
        with pytest.raises(IdempotencyConfigurationError, match="TLT"):
            list_endpoints(URLS)

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"lease": None, "on_abandoned": "retry"}, "atomic"),
            ({"lease": 60, "on_abandoned": "retry"}, "leased"),
            ({"lease": 60, "on_abandoned": "hold"}, "leased, hold"),
        ],
    )
    def test_the_mode(self, options: dict[str, Any], name: str) -> None:
        """From the options alone."""
        assert mode(SimpleNamespace(**options)) == name  # type: ignore[arg-type]

    def test_the_rest_framework(self) -> None:
        """Mixin, actions, decorated handlers and @api_view, by view class or action."""
        pytest.importorskip("rest_framework")
        listed = list_endpoints("tests.rest_framework.api_urls")
        shown = {
            (e.method, e.view.removeprefix("tests.rest_framework.api_urls.")): e.options and e.options.ttl_seconds
            for e in listed
        }
        views = [
            "Fails",
            "Guarded",
            "Decorated",
            "function",
            "Upload",
            "Raw",
            "Dynamic",
            "Commit",
            "Browsable",
            "Twice",
        ]
        assert shown == {
            ("POST", "OrderViewSet.create"): 3600,
            ("PUT", "OrderViewSet.update"): None,
            ("PATCH", "OrderViewSet.partial_update"): None,
            ("DELETE", "OrderViewSet.destroy"): None,
            ("POST", "OrderViewSet.secret"): 3600,
            ("POST", "OrderViewSet.optional"): 3600,
            ("POST", "OrderViewSet.preview"): None,
            **{("POST", view): 86400 for view in views},
            ("PUT", "Decorated"): 86400,
        }
        notes = {e.view.rpartition(".")[2]: e.note for e in listed if e.note}
        assert notes == {
            "update": "only PATCH, POST protected",
            "destroy": "only PATCH, POST protected",
            "Dynamic": "decided for each request",
        }

    def test_a_rest_view_that_may_decide_to_protect_counts_as_unprotected(self, urlconf: Any) -> None:
        """What is not certain is not certified."""
        views = pytest.importorskip("rest_framework.views")
        from django_idempotency.rest_framework import IdempotencyMixin as RestMixin

        class Maybe(RestMixin, views.APIView):
            idempotency = None

            def get_idempotency_options(self) -> Any:
                return {}

            def post(self, request: Any) -> Any: ...

        class ByHandler(Maybe):
            get_idempotency_options = RestMixin.get_idempotency_options

            @idempotent
            def post(self, request: Any) -> Any: ...

        listed = list_endpoints(
            urlconf(
                maybe=Maybe.as_view(),
                handler=ByHandler.as_view(),
                none=ByHandler.as_view(http_method_names=["put"]),
            )
        )
        assert [(e.route, e.protected, e.note) for e in listed] == [
            ("maybe", False, "decided for each request"),
            ("handler", True, ""),
        ]


def run(*args: str, urlconf: str = URLS) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("idempotency_endpoints", *args, urlconf=urlconf, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def view(request: Any) -> HttpResponse:
    return HttpResponse()


def tenant(request: Any) -> str:
    return "tenant"


@pytest.fixture
def shop(urlconf: Any) -> str:
    """Two endpoints that are protected and one that is not."""
    pay = idempotent(ttl=90, scope=tenant, operation="pay", fingerprint=("amount",), required=False)
    return urlconf(
        orders=require_POST(idempotent(view)), pay=require_POST(pay(view)), plain=require_POST(view), any=view
    )


class TestCommand:
    def test_table(self, shop: str) -> None:
        """A line for each endpoint, and one that counts."""
        assert run("--allow", "any", urlconf=shop)[0] == TABLE

    def test_json(self, shop: str) -> None:
        """For programs: plain values."""
        orders, pay, plain, _ = json.loads(run("--format", "json", urlconf=shop)[0])
        everywhere = {"method": "POST", "name": "", "view": "tests.integration.test_endpoints.view", "note": ""}
        assert plain == {**everywhere, "route": "plain", "protected": False, "allowed": False}
        assert orders == {
            **everywhere,
            "route": "orders",
            "protected": True,
            "mode": "atomic",
            "lease_seconds": None,
            "ttl_seconds": 86400,
            "required": True,
            "header": "Idempotency-Key",
            "key": None,
            "scope": None,
            "anonymous": "shared",
            "operation": "POST orders",
            "wait_seconds": 0,
            "in_progress_status": 409,
            "mismatch_status": 422,
        }
        assert (pay["scope"], pay["operation"]) == ("tests.integration.test_endpoints.tenant", "pay")

    def test_c8_c14_c15_markdown_is_the_published_specification(self, shop: str, settings: Any) -> None:
        """Header, format, what makes a key unique, how requests are compared, expiry and answers."""
        settings.IDEMPOTENCY = {"DOCS_URL": "https://shop.example/retries"}
        assert run("--format", "markdown", "--allow", "any", urlconf=shop)[0] == MARKDOWN

    def test_c4_what_makes_a_key_unique_is_published(self, urlconf: Any) -> None:
        """The scope in words; a key that is not read from the header is told."""
        urls = urlconf(
            refuse=idempotent(anonymous="refuse", methods=["POST"], may_replay=view, fingerprint=None)(view),
            event=idempotent(key=tenant, methods=["POST"], fingerprint=tenant)(view),
            form=idempotent(key=from_form_field(), methods=["POST"])(view),
        )
        refuse, event, form = run("--format", "markdown", urlconf=urls)[0].split("\n## ")[1:]
        assert "- Key: the form field 'idempotency_key'\n" in form
        assert "the credential or session that was sent; others are refused; operation `POST refuse`" in refuse
        assert "- 403 “Idempotency-Key needs an identified caller”" in refuse
        assert "- 403 “Replay is not permitted”" in refuse
        assert "Compared with the first request: not at all" in refuse
        assert "- Key: read by tests.integration.test_endpoints.tenant\n" in event
        assert "Compared with the first request: by tests.integration.test_endpoints.tenant" in event
        assert "- Header" not in event

    def test_leased_endpoints(self, urlconf: Any) -> None:
        """Their own answers: 202 with the page of the state, and an outcome that nobody knows."""
        urls = urlconf(
            accepted=require_POST(idempotent(lease=60, in_progress_status=202)(view)),
            held=require_POST(idempotent(lease=60, on_abandoned="hold")(view)),
        )
        accepted, held = run("--format", "markdown", urlconf=urls)[0].split("\n## ")[1:]
        assert "- 202 “Accepted”: The first request with this key is still being processed. Location is" in accepted
        assert ("is outstanding" in accepted, "is unknown" in accepted) == (False, False)
        assert "- 409 “The outcome for this Idempotency-Key is unknown”" in held
        assert [(e["mode"], e["lease_seconds"]) for e in json.loads(run("--format", "json", urlconf=urls)[0])] == [
            ("leased", 60),
            ("leased, hold", 60),
        ]

    def test_fail_on_unprotected(self, shop: str) -> None:
        """Status 1 and the list; the table is printed all the same."""
        with pytest.raises(CommandError) as caught:
            run("--fail-on-unprotected", urlconf=shop)
        assert caught.value.returncode == 1
        assert str(caught.value) == (
            "2 unsafe routes are not protected. Protect them, or name them with --allow:\n"
            "  POST plain  tests.integration.test_endpoints.view\n"
            "  ANY any  tests.integration.test_endpoints.view"
        )

    @pytest.mark.parametrize(
        "patterns", [["plain", "any"], ["p?ain", "a*"], ["POST p*", "ANY *"], ["tests.*.view"], ["plain", "POST any"]]
    )
    def test_what_is_allowed_does_not_fail(self, patterns: list[str], shop: str) -> None:
        """By route, by method and route, by view; the last list names a method that is not there."""
        args = ["--fail-on-unprotected", *(f"--allow={pattern}" for pattern in patterns)]
        if "POST any" in patterns:
            with pytest.raises(CommandError):
                run(*args, urlconf=shop)
        else:
            assert run(*args, urlconf=shop)[1] == ""

    def test_a_route_that_is_a_regular_expression_can_be_copied_from_the_list(self, capsys: Any) -> None:
        """Brackets in it are no pattern."""
        out, err = run("--allow", r"^o/(?P<pk>[0-9]+)/x/$")
        assert "of which 1 are allowed" in out
        assert err == ""

    def test_patterns_from_a_file(self, shop: str, tmp_path: Path) -> None:
        """One to a line; comments and empty lines are skipped."""
        file = tmp_path / "allowed"
        file.write_text("# health checks\nplain\n\n  any  \n")
        assert run("--fail-on-unprotected", f"--allow-file={file}", urlconf=shop)[1] == ""

    def test_an_idle_pattern_is_told(self, shop: str) -> None:
        """It would allow what comes to match it one day; what is protected needs no pattern either."""
        assert run("--allow", "orders", urlconf=shop)[1] == "Nothing unprotected matches 'orders': remove it.\n"

    @pytest.mark.parametrize(
        "args", [["--urlconf=no.such.module"], ["--allow-file=/no/such/file"]], ids=["urlconf", "file"]
    )
    def test_status_2_when_there_is_no_list(self, args: list[str]) -> None:
        """So that CI can tell it from a finding."""
        with pytest.raises(CommandError) as caught:
            call_command("idempotency_endpoints", *args)
        assert caught.value.returncode == 2

    def test_it_lists_the_shop(self) -> None:
        """From a shell, with its exit status."""
        pytest.importorskip("drf_spectacular")
        pytest.importorskip("standardwebhooks")
        manage = Path(__file__).parents[2] / "testproject" / "manage.py"
        command = [sys.executable, str(manage), "idempotency_endpoints", "--fail-on-unprotected"]
        allowed = ["admin/*", "PUT *", "DELETE *", "webhooks/", "unprotected/orders/"]  # webhooks/ calls run_once
        allow = [f"--allow={name}" for name in allowed]
        environment = {"DATABASE_URL": "sqlite://:memory:", "PYTHONPATH": str(manage.parents[1])}
        runs = [
            subprocess.run([*command, *more], env=environment, capture_output=True, text=True, timeout=60)
            for more in (allow, allow[:-1])
        ]
        assert [(result.returncode, result.stderr) for result in runs] == [
            (0, ""),
            (
                1,
                "CommandError: 1 unsafe route is not protected. Protect them, or name them with --allow:\n"
                "  POST unprotected/orders/  shop.views.create_order_unprotected\n",
            ),
        ]
        assert "POST    orders/  " in runs[0].stdout


class TestWords:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (86400, "1 day"),
            (172800, "2 days"),
            (5400, "90 minutes"),
            (7200, "2 hours"),
            (1, "1 second"),
            (1.5, "1.5 seconds"),
        ],
    )
    def test_lifetime(self, seconds: float, text: str) -> None:
        """In the largest unit that fits without a rest."""
        assert lifetime(SimpleNamespace(ttl_seconds=seconds)) == text  # type: ignore[arg-type]

    @pytest.mark.parametrize("quoted", [True, False])
    def test_the_pattern_is_what_the_parser_takes(self, quoted: bool, settings: Any) -> None:
        """Every character in every place; and the lengths."""
        settings.IDEMPOTENCY = {"REQUIRE_QUOTED_KEY": quoted}
        signs = [chr(code) for code in range(256) if chr(code) not in " \t"]  # the parser trims those at the ends
        texts = ["", *(form.format(sign) for sign in signs for form in ("{}", "a{}a", '"{}"', '"\\{}"', '"{}'))]
        texts += ["a" * 255, "a" * 256, f'"{"a" * 255}"', f'"{"a" * 256}"', "a b", '"a b"', '""']
        for text in texts:
            try:
                taken = bool(parse_header(text, require_quoted=quoted))
            except InvalidKey:
                taken = False
            assert bool(re.search(key_pattern(), text)) == taken, text

    @pytest.mark.parametrize("quoted", [True, False])
    def test_uuids(self, quoted: bool, settings: Any) -> None:
        """The ready validator is known; another one is only mentioned."""
        settings.IDEMPOTENCY = {
            "REQUIRE_QUOTED_KEY": quoted,
            "KEY_VALIDATOR": "django_idempotency.keys.is_uuid",
        }
        key = "8e03978e-40d5-43dd-bc93-6894a57f9324"
        assert [bool(re.search(key_pattern(), text)) for text in (f'"{key}"', key, "abc")] == [True, not quoted, False]
        assert key_format(resolve()).startswith("A UUID")
        settings.IDEMPOTENCY = {"KEY_VALIDATOR": view}
        assert key_format(resolve()).endswith("The server demands a form of its own beyond that.")

    @pytest.mark.parametrize(
        ("route", "shown"),
        [
            ("orders/<int:pk>/", "/orders/<int:pk>/"),
            (r"^api/orders/(?P<pk>[^/.]+)/$", "/api/orders/<pk>/"),
            (r"orders\.(?P<format>[a-z0-9]+)$", "/orders.<format>"),
            ("", "/"),
        ],
    )
    def test_paths(self, route: str, shown: str) -> None:
        """As a client reads them."""
        assert path(route) == shown


TABLE = """\
method  route   view                                   protected    mode    kept for    scope                                    key       note
POST    orders  tests.integration.test_endpoints.view  yes          atomic  1 day       caller                                   required
POST    pay     tests.integration.test_endpoints.view  yes          atomic  90 seconds  tests.integration.test_endpoints.tenant  optional
POST    plain   tests.integration.test_endpoints.view  no
ANY     any     tests.integration.test_endpoints.view  no, allowed

2 protected, 2 not, of which 1 are allowed.
"""  # noqa: E501 (as it is printed)
MARKDOWN = """\
# Idempotency keys

Make up a key for each operation, send it in the request header `Idempotency-Key`, and send the same key with every \
retry of that operation, which must be the same request.

`Idempotency-Replayed` in an answer says whether it is the kept answer of an earlier request (`true`) or first-hand \
(`false`). Without that header no key was honoured.

See also: <https://shop.example/retries>

## POST /orders

- Header: `Idempotency-Key`, required
- Key: 1 to 255 visible ASCII characters, unique for each operation, such as a UUID. In double quotes (a string of \
RFC 9651), or bare if it holds none of " , ; ( ) and does not begin with : ? or @.
- Unique for: the authenticated user, else the credential or session that was sent, else all anonymous callers; \
operation `POST orders`
- Compared with the first request: method, path with query, content type and body
- Kept for: 1 day from the first request. After that the key is as if it had never been used.
- 400 “Idempotency-Key is missing”: This operation needs the request header Idempotency-Key with a unique value, such \
as a UUID.
- 400 “Idempotency-Key is not valid”: The request header Idempotency-Key does not carry a usable key.
- 409 “A request is outstanding for this Idempotency-Key”: The first request with this key is still being processed. \
Retry it later, unchanged. `Retry-After`.
- 409 “Idempotency-Key is completed, response not stored”: The request was processed, and its response is not kept. \
It is not run again. `Retry-After`.
- 422 “Idempotency-Key is already used”: This key was used for another request. Use a new key for a new request.

## POST /pay

- Header: `Idempotency-Key`, optional; without it the request is not protected
- Key: 1 to 255 visible ASCII characters, unique for each operation, such as a UUID. In double quotes (a string of \
RFC 9651), or bare if it holds none of " , ; ( ) and does not begin with : ? or @.
- Unique for: the caller, as tests.integration.test_endpoints.tenant tells; operation `pay`
- Compared with the first request: the body fields amount
- Kept for: 90 seconds from the first request. After that the key is as if it had never been used.
- 400 “Idempotency-Key is not valid”: The request header Idempotency-Key does not carry a usable key.
- 409 “A request is outstanding for this Idempotency-Key”: The first request with this key is still being processed. \
Retry it later, unchanged. `Retry-After`.
- 409 “Idempotency-Key is completed, response not stored”: The request was processed, and its response is not kept. \
It is not run again. `Retry-After`.
- 422 “Idempotency-Key is already used”: This key was used for another request. Use a new key for a new request.

## Not protected

These take no notice of a key: a retry may run again.

- `POST /plain`
"""
