"""Is this the same request? Values, and what `fingerprint=` leaves out. How bodies are read is in test_bodies.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import RequestFactory
from django.test.client import encode_multipart

from django_idempotency import IdempotencyConfigurationError
from tests.http import posting_to_a_view, replayed
from tests.payloads import FORM, MULTIPART, of, seen

pytestmark = pytest.mark.django_db


# --- values


@pytest.mark.parametrize("chosen", ["request", ("to",)])
def test_the_charset_is_part_of_the_request(chosen: Any) -> None:
    """The REST framework decodes JSON by it. No charset is UTF-8."""
    body = b'{"to":"+AGEAdAB0AGEAYwBrAGUAcg-"}'
    kinds = ["application/json", "application/json; charset=UTF-8", "Application/JSON;charset=utf-8"]
    kinds += [f"application/json; charset={charset}" for charset in ("utf-7", "latin-1", "x-unknown")]
    found = [seen(body, kind, fingerprint=chosen) for kind in kinds]
    assert found[0] == found[1] == found[2]
    assert len(set(found)) == 4


def test_what_decodes_the_body_is_part_of_the_request(rf: RequestFactory) -> None:
    """A middleware may choose the charset of a form, as Django allows it."""
    before = of(request := rf.generic("POST", "/", b"a=%E9", content_type=FORM))
    request.encoding = "latin-1"
    assert of(request) != before


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        (b'{"a":10000000000000000.0}', b'{"a":10000000000000001.0}', False),
        (b'{"a":1}', b'{"a":true}', False),
        (b'{"a":1}', b'{"a":1,"a":1}', False),
        (b'{"a":"1"}', b'{"a":1,"a":"1"}', False),
        (b"{", b"{{", False),
        (b'{"a":1}', b'{"a":"1"}', False),
        (b'{"a":"\\u00e9"}', '{"a":"é"}'.encode(), True),
        (b'{"a":"\\ud800"}', b'{"a":"\xed\xa0\x80"}', True),
        (b'{"a":[1,2]}', b'{"a":[2,1]}', False),
        (b'{"b":{"d":1,"c":2},"a":0}', b'{"a":0,"b":{"c":2,"d":1}}', True),
    ],
)
def test_json_is_compared_by_value(one: bytes, two: bytes, equal: bool) -> None:
    """Never so loosely that two amounts become one."""
    assert (seen(one) == seen(two)) is equal


@pytest.mark.parametrize(
    ("one", "two"), [(b"a=1&b=2", b"b=2&a=1"), (b"a=1&csrfmiddlewaretoken=x", b"a=1&csrfmiddlewaretoken=y")]
)
def test_forms_are_compared_by_their_fields(one: bytes, two: bytes) -> None:
    """Neither the order nor the CSRF token counts. Another value does."""
    assert seen(one, FORM) == seen(two, f"{FORM}; charset=utf-8") != seen(one.replace(b"1", b"3"), FORM)


@pytest.mark.parametrize("in_memory", [2_621_440, 1])
def test_a_multipart_form_is_compared_by_content_whatever_the_method(settings: Any, in_memory: int) -> None:
    """Django itself reads only the forms of a POST, and each retry has another boundary."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = in_memory

    def patched(boundary: str, content: bytes, before: bytes = b"", **more: str) -> bytes | None:
        body = before + encode_multipart(boundary, {"a": "1", "f": SimpleUploadedFile("f", content), **more})
        request = RequestFactory().patch("/", body, content_type=f"multipart/form-data; boundary={boundary}")
        made = of(request)
        assert request.body == body
        request.upload_handlers = []  # the view may still choose its own
        return made

    first = patched("x", b"content")
    assert patched("y", b"content", csrfmiddlewaretoken="t") == first
    assert patched("y", b"content", before=b"\r\n") == first
    assert patched("x", b"other") != first != patched("x", b"content", note="n")


def test_a_multipart_form_is_read_in_the_charset_that_a_middleware_has_chosen(rf: RequestFactory) -> None:
    """In UTF-8, both of these texts would be one replacement character."""
    found = []
    for letter in (b"\xe9", b"\xe8"):
        body = encode_multipart("x", {"a": "1"}).replace(b"1", letter)
        request = rf.patch("/", body, content_type=MULTIPART)
        request.encoding = "latin-1"
        found.append(of(request))
    assert found[0] != found[1]


@pytest.mark.parametrize("parameters", ["", "; boundary=x", "; boundary=x; charset=nothing"])
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_what_is_no_form_is_compared_by_its_bytes(settings: Any, parameters: str, method: str) -> None:
    """Django finds nothing in it, and the view may find something."""
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 1
    many = encode_multipart("x", {"a": "1", "b": "2"})
    bodies = (b"one", b"another", many, many.replace(b"2", b"3"))
    content_type = f"multipart/form-data{parameters}"
    made = [of(RequestFactory().generic(method, "/", body, content_type=content_type)) for body in bodies]
    assert len({*made}) == 4


@pytest.mark.parametrize("forms", [b"a=1&b= a=1", b"a=%FF a=%FE", b"a=\xff a=\xfe", b"\xc3\xa9&\xff %C3%A9&\xff"])
def test_no_two_forms_are_taken_for_one(forms: bytes) -> None:
    """An empty field is a field, and bytes that are no text in UTF-8 stay different: Django reads all as latin-1."""
    assert seen(forms.split()[0], FORM) != seen(forms.split()[1], FORM)


@pytest.mark.parametrize("limit", [None, 2_621_440])
@pytest.mark.parametrize("content_type", ["application/json", FORM])
def test_a_large_body_is_compared_by_its_bytes(settings: Any, content_type: str, limit: int | None) -> None:
    """From 128 KiB on, under any setting: a retry after a change of the settings is the same request."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = limit
    one, other = (b"a=1&b=", b"b=%s&a=1") if content_type == FORM else (b'{"a":1,"b":"', b'{"b":"%s","a":1}')
    for length, equal in ((10, True), (131_072 - 20, True), (131_072, False)):
        text = b"x" * length
        first = one + text + (b"" if content_type == FORM else b'"}')
        assert (seen(first, content_type) == seen(other % text, content_type)) is equal
        assert seen(first, content_type) == seen(first, content_type)


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        (
            "application/json",
            b'{"b": [1, 2.50, "\xc3\xa4"], "a": null}',
            "0e8c667b7d46c5652354ea4cc8e8d79ad0bd6dce8fa2a447774b2e8532697bcd",
        ),
        (
            "application/x-www-form-urlencoded",
            b"b=2&a=1&b=1&csrfmiddlewaretoken=t",
            "3c362012d39ae6e46caad9d901e04e139d3630f0775b698fb954a7ef6a33a5d7",
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="f"; filename="f.txt"\r\nContent-Type: text/plain\r\n\r\n'
            b'content\r\n--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
            "0561e0d35c9f0c0bddf823b3b42b72d506712aeed3c94599b9ae50fac10ae5a2",
        ),
        ("text/plain", b"anything", "4fb290053b0a2f15be0ff630874331e40f87cd821f0012195a9c14d5f3e5c878"),
        ("", b"", "89c403b27fa382a222ab672c6a96ba30203813d1bac82218c2666480600511e8"),
    ],
    ids=["json", "form", "multipart", "bytes", "nothing"],
)
def test_they_stay_the_same_from_release_to_release(content_type: str, body: bytes, expected: str) -> None:
    """A retry across an upgrade is refused by new numbers: they need a new version in the digest, and a changelog."""
    assert seen(body, content_type, "/orders/?a=1").hex() == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-le"])
def test_json_is_compared_by_value_in_each_of_its_encodings(encoding: str) -> None:
    """The fingerprint is that of the same JSON in UTF-8, as in the test above."""
    body = '{"b": [1, 2.50, "ä"], "a": null}'.encode(encoding)
    assert seen(body, path="/orders/?a=1").hex() == "0e8c667b7d46c5652354ea4cc8e8d79ad0bd6dce8fa2a447774b2e8532697bcd"


def test_a_path_in_another_urlconf_is_another_request(rf: RequestFactory) -> None:
    """A middleware has chosen it by the host. Else one host's view would get the answer of another's."""
    fingerprints = []
    for urlconf in (None, "billing.urls", "shipping.urls", "shipping.urls"):
        request = rf.post("/orders/")
        if urlconf:
            request.urlconf = urlconf
        fingerprints.append(of(request))
    assert (len(set(fingerprints)), fingerprints[2] == fingerprints[3]) == (3, True)
    for method in ("POST", "PATCH"):
        request = rf.generic(method, "/orders/")
        request.urlconf = "shipping.urls"
        fingerprints.append(of(request))
    assert len(set(fingerprints)) == 5


# --- fingerprint=


def test_a_callable_decides_about_the_body_alone() -> None:
    """The address counts too, as with a tuple of fields."""
    one, same, other, elsewhere = (
        seen(body, path=path, fingerprint=lambda request: request.body[:1])
        for body, path in ((b"a1", "/"), (b"a2", "/"), (b"b1", "/"), (b"a1", "/?to=b"))
    )
    assert one == same
    assert len({one, other, elsewhere}) == 3


def test_with_a_callable_they_stay_the_same_from_release_to_release() -> None:
    """As the others, above."""
    addresses = "/orders/?a=1", "/orders/"
    found = [seen(b"", path=path, fingerprint=lambda request: b"as the project says").hex() for path in addresses]
    assert found == [
        "30b18cc6aab920065ff80ee6553478ce16834c26d13f935ec50edd96ddff5946",
        "869c4f8c521fd9008e79195f3c2b754a66ebdaf2519a9d36cd2410b978ca3902",
    ]


def test_a_callable_must_return_bytes() -> None:
    """Text has no bytes until somebody chooses an encoding."""
    with pytest.raises(IdempotencyConfigurationError, match="returned 'text'; return bytes"):
        seen(b"", fingerprint=lambda request: "text")


def test_none_compares_no_payload_and_no_query() -> None:
    """Another payload is a replay, because the project said so."""
    send = posting_to_a_view(fingerprint=None)
    assert [replayed(send(data)) for data in (b"1", b"2")] == ["false", "true"]
    assert seen(b"", path="/a?b=1", fingerprint=None) == seen(b"", path="/a?b=2", fingerprint=None)


def test_a_callable_does_not_mix_up_methods(rf: RequestFactory) -> None:
    """The same bytes under another method are another request."""
    methods = ("POST", "PATCH", "POST")
    found = [of(rf.generic(method, "/"), fingerprint=lambda request: b"same") for method in methods]
    assert found[0] == found[2] != found[1]


FIELDS = ("amount", "meta", "f", "währung")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ('{"amount":1,"note":"a"}', '{"note":"b","amount":1}'),
        ('[{"amount":1,"note":"a"},7]', '[{"amount":1,"note":"b"},7]'),
        ('{"amount":1,"note":{"deep":[1]}}', '{"amount":1}'),
    ],
)
def test_other_fields_make_no_difference(one: str, two: str) -> None:
    """Of an object, and of each object in a list."""
    assert seen(one, fingerprint=FIELDS) == seen(two, fingerprint=FIELDS)
    assert seen(one) != seen(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ('{"amount":1}', '{"amount":2}'),
        ('{"amount":1.5}', '{"amount":1.51}'),
        ('{"amount":null}', "{}"),
        ('{"meta":{"to":1,"x":1}}', '{"meta":{"to":1,"x":2}}'),
        ('{"amuont":1}', '{"amuont":2}'),
        ('[{"amuont":1}]', '[{"amuont":2}]'),
        ('[[{"amount":1,"note":1}]]', '[[{"amount":1,"note":2}]]'),
        ('{"amount":1,"amount":2}', '{"amount":1,"amount":3}'),
        ('{"amount":1', '{"amount":2'),
        ("[1]", "[2]"),
        ("1", "2"),
    ],
)
def test_nothing_else_is_left_out(one: str, two: str) -> None:
    """A body without the fields, or with one name twice, counts as a whole."""
    assert seen(one, fingerprint=FIELDS) != seen(two, fingerprint=FIELDS)
    assert seen(one, fingerprint=FIELDS) == seen(one, fingerprint=FIELDS)


@pytest.mark.parametrize("chosen", ["request", FIELDS])
def test_method_path_query_and_type_count(chosen: Any) -> None:
    """Also if the body is the same."""
    body = '{"amount":1}'
    requests = [{}, {"method": "PATCH"}, {"path": "/b"}, {"path": "/?page=1"}, {"content_type": "text/json"}]
    assert len({seen(body, fingerprint=chosen, **given) for given in requests}) == len(requests)


def test_forms_have_fields_too() -> None:
    """A file is one field."""
    for name in ("amount", "meta[0]", "meta.to", "w%C3%A4hrung"):  # what the REST framework reads as `meta`, too
        forms = (f"{name}={value}&at={at}&f=1" for value, at in ((1, 1), (1, 2), (2, 1)))
        first, same, different = [seen(form, FORM, fingerprint=FIELDS) for form in forms]
        assert first == same != different
    uploads = [
        encode_multipart("x", {"at": at, "f": SimpleUploadedFile("f", content)})
        for at, content in (("1", b"x"), ("2", b"x"), ("1", b"y"))
    ]
    first, same, different = [seen(upload, MULTIPART, fingerprint=FIELDS) for upload in uploads]
    assert first == same != different


def test_a_large_body_counts_as_a_whole() -> None:
    """From 128 KiB on it is compared by its bytes, in which no name can be left out."""
    one, two = (json.dumps({"amount": 1, "note": str(n), "a": "x" * 131_072}) for n in (1, 2))
    assert seen(one, fingerprint=FIELDS) != seen(two, fingerprint=FIELDS)
