"""What a key is found by, and what a retry is compared by, for a table of inputs: golden.json holds the values.

`python -m tests.compared.golden` adds the values of new inputs. It never changes one that is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.compared.golden_callers import scopes

FILE = Path(__file__).with_name("golden.json")
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
PARTS = (
    b'--x\r\nContent-Disposition: form-data; name="f"; filename="f.txt"\r\nContent-Type: text/plain\r\n\r\n'
    b'content\r\n--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n'
)
NESTED = b'--x\r\nContent-Disposition: form-data; name="[0]a.b"\r\n\r\n1\r\n--x--\r\n'
BODIES: dict[str, tuple[str, str, bytes, dict[str, Any]]] = {
    "JSON": ("POST", JSON, b'{"b": [1, 2.50, "\xc3\xa4"], "a": null, "c": {"z": true, "y": 1e3}}', {}),
    "JSON, numbers": ("POST", JSON, b"[0, -0.0, 1e-7, 9007199254740993, 1e400, 1.5e64]", {}),
    "JSON, vendor's": ("POST", "application/vnd.api+json", b'{"a":1}', {}),
    "JSON, patch": ("PATCH", "application/merge-patch+json", b'{"a":1}', {}),
    "JSON, latin-1": ("POST", "application/json; charset=latin-1", b'{"a":1}', {}),
    "JSON, some fields": ("POST", JSON, b'{"a":1,"b":2}', {"fingerprint": ("a",)}),
    "JSON, broken": ("POST", JSON, b'{"a":', {}),
    "JSON, one text": ("POST", JSON, b'"\\ud83d\\u00e4\\u0000"', {}),
    "JSON, a name twice": ("POST", JSON, b'{"a": 1, "a": 2}', {}),
    "JSON, deep": ("POST", JSON, b"[" * 60 + b"]" * 60, {}),
    "JSON, list of patches": ("PATCH", "application/json-patch+json", b'[{"op": "add", "path": "/a"}]', {}),
    "JSON, parameter": ("POST", "application/json; version=2", b'{"a":1}', {}),
    "JSON, UTF-8": ("POST", "Application/JSON; charset=UTF-8", b'{"a":1}', {}),
    "JSON, UTF-16": ("POST", JSON, '{"a":1}'.encode("utf-16"), {}),
    "JSON, fields of a list": ("POST", JSON, b'[{"a":1,"b":2}]', {"fingerprint": ("a",)}),
    "JSON, said to be a form": ("POST", FORM, b'{"a": 1}', {}),
    "form": ("POST", FORM, b"b=2&a=%C3%A4&b=1&csrfmiddlewaretoken=t", {}),
    "form, some fields": ("POST", FORM, b"b=2&a=1&a[0]=3", {"fingerprint": ("a",)}),
    "form, latin-1": ("POST", f"{FORM}; charset=latin-1", b"a=%E4", {}),
    "form, empty": ("POST", FORM, b"", {}),
    "form, large": ("POST", FORM, b"a=" + b"x" * 200_000, {}),
    "form, PUT": ("PUT", FORM, b"a=1&b=", {}),
    "multipart": ("POST", MULTIPART, PARTS, {}),
    "multipart, PATCH": ("PATCH", MULTIPART, PARTS, {}),
    "multipart, some fields": ("POST", MULTIPART, PARTS, {"fingerprint": ("a",)}),
    "multipart, list": ("POST", MULTIPART, NESTED, {"fingerprint": ("a",)}),
    "multipart, which it isn't": ("PATCH", MULTIPART, b'{"a": 1}', {}),
    "bytes": ("POST", "text/plain", b"anything", {}),
    "XML": ("POST", "application/xml; charset=utf-8", b"<a>1</a>", {}),
    "large": ("POST", JSON, b'{"a":"%s"}' % (b"x" * 200_000), {}),
    "nothing": ("POST", "", b"", {}),
    "DELETE": ("DELETE", "", b"", {}),
    "target alone": ("POST", JSON, b'{"a":1}', {"fingerprint": None}),
    "target alone, named operation": ("POST", JSON, b"", {"fingerprint": None, "operation": "pay"}),
    "the project's bytes": ("POST", JSON, b'{"a":1}', {"fingerprint": lambda request: request.body[:4]}),
    "the project's bytes, named operation": (
        "POST",
        JSON,
        b'{"a":1}',
        {"fingerprint": lambda request: request.body[:4], "operation": "pay"},
    ),
    "named operation": ("POST", JSON, b'{"a":1}', {"operation": "pay"}),
    "named as by default": ("POST", JSON, b'{"a":1}', {"operation": "POST orders/<int:pk>/pay"}),
}
PARSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "values": (JSON, lambda: {"b": [1, 2.5, Decimal("1.10"), None, True], "a": {"at": datetime(2026, 11, 28)}}),
    "form": (FORM, lambda: {"a": "1"}),
    "text": ("text/plain", lambda: "anything"),
}
"""What a framework's own parser has made of a body."""
OF_A_PHONE = "019AC8E0-40D5-73DD-8C93-6894A57F9324"
"""As iOS writes a UUID, here one of version 7."""
PAYLOADS: dict[str, Any] = {
    "JSON": {"b": [1, 2.5, 10.0, "ä", None, True], "a": Decimal("1.10")},
    "moment": {"at": datetime(2026, 11, 28, 12, 0, 0, 123_456, tzinfo=UTC)},
    "naive": [datetime(2026, 11, 28, 12, 0, 0)],
    "bytes": b"anything",
    "numbers": [0, -0.0, 1e-7, 2**70, 1e300, Decimal("1E+3"), Decimal("NaN")],
    "times": [date(2026, 11, 28), time(12, 0, 0, 123_456), timedelta(days=1, microseconds=1)],
    "moment elsewhere": [datetime(2026, 11, 28, 12, 0, 0, tzinfo=timezone(timedelta(hours=1)))],
    "UUID": {"id": UUID("8e03978e-40d5-43dd-bc93-6894a57f9324")},
    "text": "anything",
}


def request_for(method: str, kind: str, body: bytes) -> Any:
    from django.test import RequestFactory
    from django.urls import ResolverMatch

    request = RequestFactory().generic(method, "/orders/7/pay?a=1", body, content_type=kind)
    request.resolver_match = ResolverMatch(print, (), {"pk": 7}, route="orders/<int:pk>/pay")
    return request


def fingerprints() -> Iterator[tuple[str, Any]]:
    """By the rule of this release and, where it differs, by the earlier one."""
    from django_idempotency.engine.conf import resolve
    from django_idempotency.engine.execution.payloads import payload_fingerprint
    from django_idempotency.engine.request.fingerprints import fingerprint_of
    from tests.payloads import both_of, parsed_as

    made = {}
    for name, (method, kind, body, options) in BODIES.items():
        made[f"fingerprint, {name}"] = both_of(request_for(method, kind, body), **options)
    for name, (kind, parsed) in PARSED.items():
        request = request_for("POST", kind, b"a body")
        made[f"fingerprint, parsed {name}"] = fingerprint_of(request, resolve(), request, parsed_as(parsed))
    request = request_for("POST", JSON, b"{}")
    request.urlconf = "tests.urls"
    made["fingerprint, URLs of a host"] = both_of(request)
    made |= {f"payload, {name}": payload_fingerprint(payload) for name, payload in PAYLOADS.items()}
    for name, fingerprint in made.items():
        yield name, fingerprint.current.hex()
        if fingerprint.earlier:
            yield f"{name}, by the earlier rule", [earlier.hex() for earlier in fingerprint.earlier]


def operations() -> Iterator[tuple[str, Any]]:
    from django.test import RequestFactory
    from django.urls import ResolverMatch

    from django_idempotency import Idempotency
    from django_idempotency.engine.conf import resolve
    from django_idempotency.engine.execution.once import operation_name
    from django_idempotency.engine.request.calls import Call
    from tests.works import place

    request = RequestFactory().patch("/orders/7")
    request.resolver_match = ResolverMatch(print, (), {"pk": 7}, route="orders/<int:pk>")
    yield "operation, route", Call(request, print, (), {}, resolve()).operation_name()
    yield "operation, named", Call(request, print, (), {}, resolve(Idempotency(operation="pay"))).operation_name()
    request.resolver_match = None
    yield "operation, no route", Call(request, place, (), {}, resolve()).operation_name()
    yield "operation, run_once", operation_name(place, None)
    yield "operation, run_once, named", operation_name(place, "pay")


def identities() -> Iterator[tuple[str, Any]]:
    """What a row and a value in a backend are found by, and the key that a gateway gets."""
    from django.test import override_settings

    from django_idempotency.engine.protocol.digests import identify
    from django_idempotency.engine.protocol.key_syntax import check_dated, parse_header
    from django_idempotency.engine.stores.values import name_of
    from django_idempotency.keys import derived_key, key_reference

    given = {"short": "user:auth.User:7", "long": "x" * 300, "unprintable": "a\nb\ud800", "hashed": f"scope:{'0' * 64}"}
    for name, scope in given.items():
        identity = identify(scope=scope, operation="POST pay", key="abc")
        yield f"identity, {name} scope", [identity.scope, identity.key_hash, identity.scope_hash]
        of = {"scope": identity.scope, "operation": "POST pay", "key": "abc"}
        yield f"derived key, {name} scope", derived_key(**of, step="charge")
        yield f"name in a backend, {name} scope", name_of(identity)
    with override_settings(IDEMPOTENCY={"NAMESPACE": "shop-eu"}):
        yield "derived key, namespace", derived_key(scope="s", operation="POST pay", key="abc", step="charge")
    yield "reference", key_reference("abc")
    for name, header in {"bare": "abc", "quoted": '"abc";a=1', "escaped": '"a\\\\\\"b"', "UUID": OF_A_PHONE}.items():
        yield f"key, {name}", parse_header(header)
    yield "key, UUID that has to be one", check_dated(OF_A_PHONE)


def values() -> Iterator[tuple[str, Any]]:
    """The name of each input, and its value in this release."""
    from tests.compared.golden_stored import stored

    yield from fingerprints()
    yield from scopes()
    yield from operations()
    yield from identities()
    yield from stored()


def main() -> None:
    import os

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    made = dict(values())
    FILE.write_text(
        json.dumps({name: known.get(name, made[name]) for name in made}, indent=1, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()
