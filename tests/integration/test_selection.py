"""`fingerprint=Fingerprint(…)`: parts of a request that are not compared, and only those."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import RequestFactory
from django.test.client import encode_multipart

from django_idempotency import Fingerprint, Idempotency
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.fingerprints import fingerprint_of
from tests.http import posting_to_a_view

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
WITHOUT = Fingerprint(exclude=("trace_id", "meta.sent_at", "items.note"))
FIELDS = Fingerprint(fields=("amount", "meta.to", "items.price"))
BOTH = Fingerprint(fields=("meta",), exclude=["meta.sent_at"])


def seen(body: Any, chosen: Any, content_type: str = JSON, path: str = "/", method: str = "POST") -> bytes | None:
    request = RequestFactory().generic(method, path, body, content_type=content_type)
    return fingerprint_of(request, resolve(Idempotency(fingerprint=chosen)), request)


@pytest.mark.parametrize(
    ("chosen", "one", "two"),
    [
        (WITHOUT, '{"a":1,"trace_id":"x"}', '{"trace_id":"y","a":1}'),
        (WITHOUT, '{"a":1,"trace_id":"x"}', '{"a":1}'),
        (WITHOUT, '{"trace_id":{"deep":[1]}}', "{}"),
        (WITHOUT, '{"meta":{"sent_at":1,"to":2}}', '{"meta":{"sent_at":9,"to":2}}'),
        (WITHOUT, '{"meta.sent_at":1}', '{"meta.sent_at":2}'),
        (WITHOUT, '{"items":[{"price":1,"note":"a"},7]}', '{"items":[{"price":1,"note":"b"},7]}'),
        (WITHOUT, '[{"trace_id":1,"a":1}]', '[{"trace_id":2,"a":1}]'),
        (WITHOUT, "{}", "{ }"),
        (FIELDS, '{"amount":1,"note":"a"}', '{"amount":1,"note":"b"}'),
        (FIELDS, '{"meta":{"to":1,"sent_at":1}}', '{"meta":{"to":1,"sent_at":2}}'),
        (FIELDS, '{"items":[{"price":1,"note":"a"}]}', '{"items":[{"price":1,"note":"b"}]}'),
        (FIELDS, '[{"amount":1,"note":"a"}]', '[{"amount":1,"note":"b"}]'),
        (BOTH, '{"meta":{"sent_at":1},"a":1}', '{"meta":{"sent_at":2},"a":2}'),
        (("amount", "meta.to"), '{"meta":{"to":1,"x":1}}', '{"meta":{"to":1,"x":2},"note":1}'),
    ],
)
def test_what_is_left_out_makes_no_difference(chosen: Any, one: str, two: str) -> None:
    """A name with dots leads into objects, and in a list into each of its objects; or it is the field's own name."""
    assert seen(one, chosen) == seen(two, chosen)
    assert seen(one, "request") != seen(two, "request") or one == "{}"


@pytest.mark.parametrize(
    ("chosen", "one", "two"),
    [
        (WITHOUT, '{"a":1}', '{"a":2}'),
        (WITHOUT, '{"traceid":1}', '{"traceid":2}'),
        (WITHOUT, '{"deep":{"trace_id":1}}', '{"deep":{"trace_id":2}}'),
        (WITHOUT, '{"meta":{"sent_at":1}}', "{}"),
        (WITHOUT, '{"meta":1}', '{"meta":2}'),
        (WITHOUT, '{"meta":"sent_at"}', '{"meta":["sent_at"]}'),
        (WITHOUT, '{"meta":{"sent_at":1}}', '{"meta":[{"sent_at":1}]}'),
        (WITHOUT, '{"items":[{"note":1}]}', '{"items":[{"note":1},{"note":1}]}'),
        (WITHOUT, '{"items":[{"price":1},{"price":2}]}', '{"items":[{"price":2},{"price":1}]}'),
        (WITHOUT, '{"items":[[{"note":1}]]}', '{"items":[[{"note":2}]]}'),
        (WITHOUT, '{"trace_id":1,"trace_id":2}', '{"trace_id":1,"trace_id":3}'),
        (WITHOUT, '"trace_id"', '"a"'),
        (WITHOUT, '{"trace_id":1', '{"trace_id":2'),
        (FIELDS, '{"amount":1}', '{"amount":2}'),
        (FIELDS, '{"amount":1.5}', '{"amount":1.50}'),
        (FIELDS, '{"amount":null}', "{}"),
        (FIELDS, '{"meta":1}', '{"meta":2}'),
        (FIELDS, '{"meta":{"to":1}}', '{"meta":{}}'),
        (FIELDS, '{"items":[{"price":1}]}', '{"items":[{"price":1},{}]}'),
        (FIELDS, '{"amuont":1}', '{"amuont":2}'),
        (FIELDS, '[{"amuont":1}]', '[{"amuont":2}]'),
        (FIELDS, "[1]", "[2]"),
        (FIELDS, "1", "2"),
        (BOTH, '{"meta":{"to":1}}', '{"meta":{"to":2}}'),
    ],
)
def test_nothing_else_is_left_out(chosen: Any, one: str, two: str) -> None:
    """A body without the fields, or with one name twice, counts as a whole."""
    assert seen(one, chosen) != seen(two, chosen)
    assert seen(one, chosen) == seen(one, chosen)


@pytest.mark.parametrize("chosen", [WITHOUT, FIELDS])
def test_method_path_query_and_type_count(chosen: Any) -> None:
    """Also if the body is the same."""
    body = '{"amount":1}'
    requests = [{}, {"method": "PATCH"}, {"path": "/b"}, {"path": "/?page=1"}, {"content_type": "application/x+json"}]
    assert len({seen(body, chosen, **given) for given in requests}) == len(requests)


def test_the_query_string_can_be_left_out() -> None:
    """The path still counts, with a question mark of its own."""
    chosen = Fingerprint(query=False)
    paths = ["/a", "/a?utm=1", "/a?utm=2", "/a?", "/a%3Futm=1", "/b"]
    first, *same, other, another = [seen("{}", chosen, path=path) for path in paths]
    assert same == [first] * 3
    assert len({first, other, another}) == 3


@pytest.mark.parametrize("chosen", [Fingerprint(exclude=("sent.at", "f")), Fingerprint(fields=("a",))])
def test_forms_have_fields_too(chosen: Any) -> None:
    """A form's field may have dots in its name; the field of a file is left out like any other."""
    one, two, other = (f"a={a}&sent.at={at}" for a, at in ("11", "12", "21"))
    assert seen(one, chosen, FORM) == seen(two, chosen, FORM) != seen(other, chosen, FORM)
    uploads = [
        encode_multipart("x", {"a": a, "sent.at": "1", "f": SimpleUploadedFile("f", content)})
        for a, content in (("1", b"x"), ("1", b"y"), ("2", b"x"))
    ]
    first, same, different = [seen(upload, chosen, MULTIPART) for upload in uploads]
    assert first == same != different


def test_a_file_has_no_fields() -> None:
    """Its name and content are one value."""
    uploads = [encode_multipart("x", {"f": SimpleUploadedFile("f", content)}) for content in (b"x", b"y")]
    for chosen in (Fingerprint(fields=("f.name",)), Fingerprint(exclude=("f.name",))):
        first, second = [seen(upload, chosen, MULTIPART) for upload in uploads]
        assert first != second


def test_a_large_body_counts_as_a_whole() -> None:
    """From 128 KiB on it is compared by its bytes, in which no name can be left out."""
    one, two = (json.dumps({"trace_id": n, "a": "x" * 131_072}) for n in (1, 2))
    assert seen(one, WITHOUT) != seen(two, WITHOUT)


def test_nothing_left_out_is_the_whole_request() -> None:
    """`Fingerprint()` compares what the default compares."""
    assert seen('{"a":1}', Fingerprint()) == seen('{"a":1}', "request")


@pytest.mark.django_db
def test_a_retry_with_a_new_trace_id_is_a_replay() -> None:
    """From end to end."""
    send = posting_to_a_view(fingerprint=WITHOUT)
    bodies = (b'{"a":1,"trace_id":"x"}', b'{"a":1,"trace_id":"y"}', b'{"a":2,"trace_id":"x"}')
    assert [send(body).status_code for body in bodies] == [200, 200, 422]
