"""JSON numbers and kinds of JSON: which are the same? What an earlier version of the rule has stored is still read."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.test import RequestFactory

from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.versions import Fingerprint
from django_idempotency.engine.request.fingerprints import fingerprint_of
from django_idempotency.models import IdempotencyKey
from tests.http import posting_to_a_view, replayed
from tests.payloads import both_seen, parsed_as, seen

pytestmark = pytest.mark.django_db


def test_what_a_framework_parses_is_told_apart(rf: RequestFactory) -> None:
    """Its parser may produce other types than JSON has: a text of the same content is another value."""
    values = [b"ab", "ab", "6162", ["bytes", "6162"], Decimal("1.5"), Decimal("1.6"), "1.5", True, Decimal("NaN")]
    asked = [of_parsed(rf, value) for value in values]
    assert len({one.current for one in asked}) == 9
    # As 0.4.0 stored it:
    assert asked[4].earlier[0].hex() == "cb32607b18fe51d353bae8305519389562d66e8b4a5b7fe20abead897202ff0f"


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, Decimal("1.00"), Decimal("1E+0")),
        (1.5, Decimal("1.50")),
        (0, -0.0, Decimal("-0.00")),
        (10**22, 1e22, Decimal("1e22")),
        (10**70, Decimal("1e70")),
    ],
)
def test_numbers_that_a_framework_parses_are_compared_by_value(rf: RequestFactory, values: tuple[Any, ...]) -> None:
    """Whichever type its parser makes of them."""
    assert len({of_parsed(rf, value).current for value in values}) == 1


def test_a_framework_may_parse_what_is_no_number(rf: RequestFactory) -> None:
    """Python's parser reads NaN and Infinity, which stay different."""
    values = [float("nan"), float("inf"), float("-inf"), "nan", None]
    assert len({of_parsed(rf, value).current for value in values}) == 5


def of_parsed(rf: RequestFactory, value: Any) -> Fingerprint:
    request = rf.post("/", "{}", content_type="application/json")
    return fingerprint_of(request, resolve(), request, parsed_as(partial(dict, a=value)))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (b'{"a":1.5}', b'{"a":"\\u00001.5"}'),
        (b'{"a":1.5}', b'{"a":{"\\u0000number":"1.5"}}'),
        (b'{"\\u0000number":"1.5"}', b"1.5"),
        (b'{"\\u0000a":1}', b'{"\\u0000\\u0000a":1}'),
        (b'{"a":1e400}', b'{"a":"1e400"}'),
    ],
)
def test_no_text_looks_like_a_number(one: bytes, two: bytes) -> None:
    """Nor can a text contain what stands around a number of two forms."""
    assert seen(one) != seen(two)


@pytest.mark.parametrize(
    "equal",
    [
        (b"1", b"1.0", b"1e0", b"10e-1", b"0.1E+1", b"1." + 66 * b"0"),
        (b"1.5", b"1.50", b"15e-1", b"0.15e1"),
        (b"-1.5", b"-1.50", b"-15E-1"),
        (b"0", b"0.0", b"-0", b"-0.0", b"0e9", b"0.00e-9"),
        (b"1000", b"1e3", b"1.0e3"),
        (b"9007199254740993", b"9007199254740993.0"),
        (b"0.000001", b"1e-6", b"10e-7"),
        (b"1" + 64 * b"0", b"1e64", b"10e63"),
        (b"1" + 63 * b"0", b"1e63"),
        (b"1e3000000", b"10e2999999", b"0.1e3000001"),
        (b"1e-3000000", b"0.1e-2999999"),
        (b"1234567890" * 7 + b"1.0", b"1234567890" * 7 + b"1"),
    ],
    ids=lambda equal: equal[0].decode()[:20],
)
def test_numbers_are_compared_by_value(equal: tuple[bytes, ...]) -> None:
    """However the client has written them, and without expanding an exponent."""
    assert len({seen(b'{"a":%s}' % number) for number in equal}) == 1


@pytest.mark.parametrize(
    "different",
    [
        (b"1", b"true", b'"1"', b"[1]", b"-1", b"10", b"0.1", b"1.0000000000000000000000000000000000000001"),
        (b"9007199254740993", b"9007199254740992", b"9007199254740993.5"),
        (b"1e400", b"1e401", b"-1e400", b'"1e400"', b"1e-400"),
        (b"0.30000000000000004", b"0.3"),
    ],
    ids=lambda different: different[0].decode(),
)
def test_no_two_numbers_become_one(different: tuple[bytes, ...]) -> None:
    """Neither floats nor contexts of `decimal` are exact enough for an amount."""
    assert len({seen(b'{"a":%s}' % number) for number in different}) == len(different)


@pytest.mark.parametrize(
    ("body", "earlier"),
    [
        (
            b'{"b": [1, 2.50, "\xc3\xa4"], "a": null}',
            "f610e8c798bb208c45e6cbe36bb5620c09b02acf23a970b88911e570563e016c",
        ),
        (b'{"b": [1, 2.5, "\xc3\xa4"], "a": null}', None),
    ],
)
def test_the_earlier_version_of_the_rule_is_still_read(body: bytes, earlier: str | None) -> None:
    """Otherwise a retry across the upgrade would be refused. Where both agree, there is one."""
    assert both_seen(body, path="/orders/?a=1").earlier == (() if earlier is None else (bytes.fromhex(earlier),))


def test_a_key_stored_by_the_earlier_version_is_replayed() -> None:
    """And another payload is still another one."""
    send = posting_to_a_view()
    assert replayed(send(b'{"a": 1.50}')) == "false"
    row = IdempotencyKey.objects.get()
    stored = both_seen(b'{"a": 1.50}', path="/")
    assert bytes(row.fingerprint) == stored.current
    row.fingerprint = stored.earlier[0]
    row.save()
    assert replayed(send(b'{"a": 1.50}')) == "true"
    assert send(b'{"a": 1.51}').status_code == 422


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        ("application/json", "application/vnd.api+json", True),
        ("application/json", "application/hal+json", True),
        ("application/json", "application/merge-patch+json", False),
        ("application/merge-patch+json", "application/json-patch+json", False),
        ("application/json", "text/plain", False),
    ],
)
def test_all_kinds_of_json_are_one_but_patches(one: str, two: str, equal: bool) -> None:
    """A client library may name one or the other. In each kind of patch, the same JSON means something else."""
    assert (seen(b'{"a":1}', one) == seen(b'{"a":1}', two)) is equal
