"""The endpoints as a table, as JSON and as Markdown."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from django.views.decorators.http import require_POST

from django_idempotency import Fingerprint, idempotent
from django_idempotency.endpoints.formats import path
from django_idempotency.endpoints.specification import key_format, key_pattern, lifetime
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.key_syntax import InvalidKey, parse_header
from django_idempotency.keys import from_form_field
from tests.integration.endpoints.shop import run, tenant, view


def test_table(shop: str) -> None:
    """A line for each endpoint, and one that counts."""
    assert run("--allow", "any", urlconf=shop)[0] == TABLE


def test_json(shop: str) -> None:
    """For programs: plain values."""
    orders, pay, plain, _ = json.loads(run("--format", "json", urlconf=shop)[0])
    everywhere = {"method": "POST", "name": "", "view": "tests.integration.endpoints.shop.view", "note": ""}
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
    assert (pay["scope"], pay["operation"]) == ("tests.integration.endpoints.shop.tenant", "pay")


def test_c8_c14_c15_markdown_is_the_published_specification(shop: str, settings: Any) -> None:
    """Header, format, what makes a key unique, how requests are compared, expiry and answers."""
    settings.IDEMPOTENCY = {"DOCS_URL": "https://shop.example/retries"}
    head, orders, pay, rest = run("--format", "markdown", "--allow", "any", urlconf=shop)[0].split("\n## ")
    assert head.endswith("\nSee also: <https://shop.example/retries>\n")
    lines = orders.splitlines()
    assert lines[0] == "POST /orders"
    assert lines[2:7] == [
        "- Header: `Idempotency-Key`, required",
        "- Key: 1 to 255 visible ASCII characters, unique for each operation, such as a UUID. In double quotes (a "
        'string of RFC 9651), or bare if it holds none of " , ; ( ) and does not begin with : ? or @.',
        "- Unique for: the authenticated user, else the credential or session that was sent, else all anonymous "
        "callers; operation `POST orders`",
        "- Compared with the first request: method, path, query string, content type and body (JSON and forms up to "
        "128 KiB by their values)",
        "- Kept for: 1 day from the first request. After that the key is as if it had never been used.",
    ]
    answers = ["400 `missing-key`", "400 `invalid-key`", "409 `in-progress`", "409 `response-not-stored`"]
    assert [line[2:].split(' "')[0] for line in lines[7:]] == [*answers, "422 `already-used`", "503 `busy`"]
    assert lines[9] == (
        '- 409 `in-progress` "A request is outstanding for this Idempotency-Key": The first request with this key is '
        "still being processed. Retry it later, unchanged. `Retry-After`."
    )
    assert "- Header: `Idempotency-Key`, optional; without it the request is not protected\n" in pay
    assert "- Unique for: the caller, as tests.integration.endpoints.shop.tenant tells; operation `pay`\n" in pay
    assert ("and the body fields amount\n" in pay, "missing-key" in pay) == (True, False)
    assert rest == "Not protected\n\nThese take no notice of a key: a retry may run again.\n\n- `POST /plain`\n"


@pytest.mark.parametrize(
    ("route", "shown"),
    [
        ("orders/<int:pk>/", "/orders/<int:pk>/"),
        (r"^api/orders/(?P<pk>[^/.]+)/$", "/api/orders/<pk>/"),
        (r"orders\.(?P<format>[a-z0-9]+)$", "/orders.<format>"),
        ("", "/"),
        (r"\/orders", "/orders"),
    ],
)
def test_paths(route: str, shown: str) -> None:
    """As a client reads them."""
    assert path(route) == shown


TABLE = """\
method  route   view                                   protected    mode    kept for    scope                                    key       note
POST    orders  tests.integration.endpoints.shop.view  yes          atomic  1 day       caller                                   required
POST    pay     tests.integration.endpoints.shop.view  yes          atomic  90 seconds  tests.integration.endpoints.shop.tenant  optional
POST    plain   tests.integration.endpoints.shop.view  no
ANY     any     tests.integration.endpoints.shop.view  no, allowed

2 protected, 2 not, of which 1 are allowed.
"""  # noqa: E501 (as it is printed)


# --- the words of the published specification


def test_c4_what_makes_a_key_unique_is_published(urlconf: Any) -> None:
    """The scope in words; a key that is not read from the header is told."""
    urls = urlconf(
        refuse=idempotent(anonymous="refuse", methods=["POST"], may_replay=view, fingerprint=None)(view),
        event=idempotent(key=tenant, methods=["POST"], fingerprint=tenant)(view),
        form=idempotent(key=from_form_field(), methods=["POST"])(view),
    )
    refuse, event, form = run("--format", "markdown", urlconf=urls)[0].split("\n## ")[1:]
    assert "- Key: the form field 'idempotency_key'\n" in form
    assert "the credential or session that was sent; others are refused; operation `POST refuse`" in refuse
    assert '- 403 `unidentified-caller` "Idempotency-Key needs an identified caller"' in refuse
    assert '- 403 `replay-refused` "Replay is not permitted"' in refuse
    assert "Compared with the first request: not at all" in refuse
    assert "- Key: read by tests.integration.endpoints.shop.tenant\n" in event
    assert (
        "first request: method, path, query string and what tests.integration.endpoints.shop.tenant returns\n" in event
    )
    assert "- Header" not in event


def test_c9_what_is_compared_is_published(urlconf: Any) -> None:
    """What a `Fingerprint` leaves out is told."""
    chosen = {
        "without": Fingerprint(exclude=("trace_id", "meta.sent_at")),
        "chosen": Fingerprint(fields=("amount", "meta"), exclude=("meta.sent_at",), query=False),
    }
    views = {name: idempotent(methods=["POST"], fingerprint=given)(view) for name, given in chosen.items()}
    without, fields = run("--format", "markdown", urlconf=urlconf(**views))[0].split("\n## ")[1:]
    assert (
        "first request: method, path, query string, content type and body (JSON and forms up to 128 KiB by their "
        "values), without trace_id, meta.sent_at\n"
    ) in without
    assert (
        "first request: method, path, content type and the body fields amount, meta, without meta.sent_at\n"
    ) in fields


def test_leased_endpoints(urlconf: Any) -> None:
    """Their own answers: 202 with the page of the state, and an outcome that nobody knows."""
    urls = urlconf(
        accepted=require_POST(idempotent(lease=60, in_progress_status=202)(view)),
        held=require_POST(idempotent(lease=60, on_abandoned="hold")(view)),
    )
    accepted, held = run("--format", "markdown", urlconf=urls)[0].split("\n## ")[1:]
    assert '- 202 `in-progress` "Accepted": The first request with this key is still being processed' in accepted
    assert ("is outstanding" in accepted, "is unknown" in accepted) == (False, False)
    assert '- 409 `outcome-unknown` "The outcome for this Idempotency-Key is unknown"' in held
    assert [(e["mode"], e["lease_seconds"]) for e in json.loads(run("--format", "json", urlconf=urls)[0])] == [
        ("leased", 60),
        ("leased, hold", 60),
    ]


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
