"""What a key is found by, and what a retry is compared by, for a table of inputs: golden.json holds the values.

`python -m tests.compared.golden` adds the values of new inputs. It never changes one that is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("golden.json")
BODIES: dict[str, tuple[str, str, bytes, dict[str, Any]]] = {
    "JSON": ("POST", "application/json", b'{"b": [1, 2.50, "\xc3\xa4"], "a": null, "c": {"z": true, "y": 1e3}}', {}),
    "JSON, numbers": ("POST", "application/json", b"[0, -0.0, 1e-7, 9007199254740993, 1e400, 1.5e64]", {}),
    "JSON, vendor's": ("POST", "application/vnd.api+json", b'{"a":1}', {}),
    "JSON, patch": ("PATCH", "application/merge-patch+json", b'{"a":1}', {}),
    "JSON, latin-1": ("POST", "application/json; charset=latin-1", b'{"a":1}', {}),
    "JSON, some fields": ("POST", "application/json", b'{"a":1,"b":2}', {"fingerprint": ("a",)}),
    "JSON, broken": ("POST", "application/json", b'{"a":', {}),
    "form": ("POST", "application/x-www-form-urlencoded", b"b=2&a=%C3%A4&b=1&csrfmiddlewaretoken=t", {}),
    "multipart": (
        "POST",
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="f"; filename="f.txt"\r\nContent-Type: text/plain\r\n\r\n'
        b'content\r\n--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
        {},
    ),
    "bytes": ("POST", "text/plain", b"anything", {}),
    "large": ("POST", "application/json", b'{"a":"%s"}' % (b"x" * 200_000), {}),
    "nothing": ("POST", "", b"", {}),
    "target alone": ("POST", "application/json", b'{"a":1}', {"fingerprint": None}),
    "the project's bytes": ("POST", "application/json", b'{"a":1}', {"fingerprint": lambda request: request.body[:4]}),
    "named operation": ("POST", "application/json", b'{"a":1}', {"operation": "pay"}),
}
PAYLOADS: dict[str, Any] = {
    "JSON": {"b": [1, 2.5, 10.0, "ä", None, True], "a": Decimal("1.10")},
    "moment": {"at": datetime(2026, 11, 28, 12, 0, 0, 123_456, tzinfo=UTC)},
    "naive": [datetime(2026, 11, 28, 12, 0, 0)],
    "bytes": b"anything",
}
HEADERS: dict[str, dict[str, str]] = {
    "nobody": {},
    "bearer": {"Authorization": "Bearer abc"},
    "basic": {"Authorization": "Basic YTpi"},
    "two": {"Authorization": "Bearer abc", "X-Api-Key": "k"},
}
CLAIMS = {"iss": "shops", "sub": "ada", "azp": "app", "roles": ["b", "a"], "org": 3, "exp": 1, "jti": "x"}


def values() -> Iterator[tuple[str, Any]]:
    """The name of each input, and its value in this release."""
    from django.contrib.auth.models import User
    from django.test import RequestFactory
    from django.urls import ResolverMatch

    from django_idempotency import Idempotency
    from django_idempotency.engine.conf import resolve
    from django_idempotency.engine.execution.payloads import payload_fingerprint
    from django_idempotency.engine.protocol.digests import identify
    from django_idempotency.engine.request.callers import HandedOn, scope_of
    from django_idempotency.engine.request.calls import Call
    from django_idempotency.keys import derived_key
    from tests.payloads import both_of

    for name, (method, kind, body, options) in BODIES.items():
        request: Any = RequestFactory().generic(method, "/orders/7/pay?a=1", body, content_type=kind)
        request.resolver_match = ResolverMatch(print, (), {"pk": 7}, route="orders/<int:pk>/pay")
        yield f"fingerprint, {name}", both_of(request, **options).current.hex()
    for name, payload in PAYLOADS.items():
        yield f"payload, {name}", payload_fingerprint(payload).current.hex()
    for name, headers in HEADERS.items():
        yield f"scope, {name}", scope_of(RequestFactory().post("/", headers=headers), resolve())
    for name, headers in HEADERS.items():
        request = RequestFactory().post("/", headers=headers)
        request.user = User(pk=7)
        yield f"scope, user and {name}", scope_of(request, resolve())
    for name, handed in {
        "claims": HandedOn(token=CLAIMS, authenticator="tests.Bearer"),
        "user and claims": HandedOn(user=User(pk=7), token=CLAIMS),
        "text": HandedOn(token="partner", authenticator="tests.ApiKey"),
    }.items():
        yield f"scope, {name}", scope_of(RequestFactory().post("/"), resolve(), lambda _, handed=handed: handed)
    request = RequestFactory().patch("/orders/7")
    request.resolver_match = ResolverMatch(print, (), {"pk": 7}, route="orders/<int:pk>")
    yield "operation, route", Call(request, print, (), {}, resolve()).operation_name()
    yield "operation, named", Call(request, print, (), {}, resolve(Idempotency(operation="pay"))).operation_name()
    for name, scope in {"short": "user:auth.User:7", "long": "x" * 300}.items():
        identity = identify(scope=scope, operation="POST pay", key="abc")
        yield f"identity, {name} scope", [identity.scope, identity.key_hash, identity.scope_hash]
        of = {"scope": identity.scope, "operation": "POST pay", "key": "abc"}
        yield f"derived key, {name} scope", derived_key(**of, step="charge")


if __name__ == "__main__":
    import os

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    FILE.write_text(json.dumps({**dict(values()), **known}, indent=1, ensure_ascii=False) + "\n")
