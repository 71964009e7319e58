"""Is this the same request? Bodies of every kind, and the view's right to read them as ever."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client, RequestFactory
from django.test.client import encode_multipart

from django_idempotency import Idempotency, IdempotencyConfigurationError
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.fingerprints import fingerprint_of
from tests.http import posting_to_a_view, replayed
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.edge_urls")]
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"[" * 200 + b"]" * 200),
        ("application/json", b"[" * 100_000 + b"]" * 100_000),
        *(("application/json", b"[" * depth + b"]" * depth) for depth in (500, 990, 5_000)),
        ("application/json", b'{"a":' * 900 + b"1" + b"}" * 900),
        ("application/json", b"\xff\xfe\x00"),
        ("application/json", b'"\\ud800"'),
        ("application/json", b"1" * 5_000),
        ("application/json", b"NaN"),
        ("application/json", b""),
        (FORM, b"\xff=\xfe&%ff=%00"),
        (FORM, b"&".join(b"%d=1" % n for n in range(1_500))),
        (FORM, b'{"not": "a form"}'),
        ("multipart/form-data", b"no boundary at all"),
        ("multipart/form-data; boundary=\xe9", b"no usable boundary"),
        ("multipart/form-data; boundary=x", b"the boundary does not occur"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a'),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64\r\n\r\n!\r\n--x--',
        ),
        ("multipart/form-data; boundary=x", encode_multipart("x", {str(n): "1" for n in range(1_500)})),
        ("not a content type", b"x"),
        ("", b"x"),
    ],
)
@pytest.mark.parametrize("path", ["/raw", "/by_lines"])
def test_a_view_that_reads_raw_bytes_accepts_anything(post: Post, path: str, content_type: str, body: bytes) -> None:
    """Broken or not, it gets the very bytes, and a retry is a replay."""
    answers = [post(path, body, content_type=content_type) for _ in range(2)]
    assert [(a.status_code, replayed(a)) for a in answers] == [(200, "false"), (200, "true")]
    assert answers[0].content.decode() == hashlib.sha256(body).hexdigest()
    assert Order.objects.count() == 1


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("content_type", ["application/json", FORM, "multipart/form-data; boundary=x", "text/plain"])
def test_a_stream_that_a_middleware_took_away_is_an_error(
    client: Any, settings: Any, method: str, content_type: str
) -> None:
    """What cannot be compared is never taken for equal."""
    settings.MIDDLEWARE = ["tests.integration.edge_urls.consuming"]
    body = encode_multipart("x", {"a": "1"})
    with pytest.raises(IdempotencyConfigurationError, match="was consumed before the view"):
        client.generic(method, "/create", body, content_type=content_type, headers={"Idempotency-Key": "k"})
    assert Order.objects.count() == 0


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        # An empty form, as a browser sends it, with a new boundary each time.
        ((b"--x--\r\n", "x"), (b"--y--\r\n", "y"), "true"),
        ((b"--x--\r\n", "x"), (b"--x\r\nnonsense", "x"), "false"),
        ((b"one", "x"), (b"two", "x"), "false"),
        ((b"one", "x"), (b"one", "x"), "true"),
    ],
)
def test_what_the_multipart_parser_passes_over_is_compared(post: Post, one: Any, two: Any, expected: str) -> None:
    """Two bodies in which the parser finds nothing are not the same because of that; two empty forms are."""
    answers = [post("/raw", body, content_type=f"multipart/form-data; boundary={mark}") for body, mark in (one, two)]
    assert [replayed(a) for a in answers] == ["false", expected]
    assert answers[1].status_code == (200 if expected == "true" else 422)


@pytest.mark.parametrize("enforced", [False, True])
def test_an_empty_form_is_a_form_with_and_without_csrf(key: str, enforced: bool) -> None:
    """CSRF parses it before; the retry has a new boundary."""
    client = Client(enforce_csrf_checks=enforced)
    client.cookies["csrftoken"] = token = "a" * 32
    answers = [
        client.post(
            "/create",
            f"--{mark}--\r\n".encode(),
            content_type=f"multipart/form-data; boundary={mark}",
            headers={"Idempotency-Key": key, "X-CSRFToken": token},
        )
        for mark in ("one", "two")
    ]
    assert [(a.status_code, replayed(a)) for a in answers] == [(201, "false"), (201, "true")]


@pytest.mark.parametrize("csrf_parsed", [False, True])
def test_another_file_name_or_type_is_another_request(key: str, csrf_parsed: bool) -> None:
    """The file's name and content type are part of what was asked for, whoever parsed the form."""
    client = Client(enforce_csrf_checks=csrf_parsed)
    client.cookies["csrftoken"] = token = "a" * 32

    def send(name: str, type_: str) -> int:
        file = SimpleUploadedFile(name, b"same", content_type=type_)
        response = client.post(
            "/create",
            encode_multipart("x", {"file": file}),
            content_type="multipart/form-data; boundary=x",
            headers={"Idempotency-Key": key, "X-CSRFToken": token},
        )
        return int(response.status_code)

    assert [send("a.txt", "text/plain"), send("a.txt", "text/plain")] == [201, 201]
    assert [send("b.txt", "text/plain"), send("a.txt", "text/html")] == [422, 422]


def test_a_callable_decides(post: Post) -> None:
    """Of the body, only what the callable returns counts. The address counts too, as with a tuple of fields."""
    answers = [post("/by_header", {"n": n}, headers={"X-Print": p}) for n, p in ((1, "a"), (2, "a"), (1, "b"))]
    assert [(a.status_code, replayed(a)) for a in answers] == [(200, "false"), (200, "true"), (422, "false")]
    assert post("/by_header?to=b", {"n": 1}, headers={"X-Print": "a"}).status_code == 422


def test_a_callable_does_not_mix_up_methods(rf: RequestFactory) -> None:
    """The same bytes under another method are another request."""
    options = resolve(Idempotency(fingerprint=lambda request: b"same"))
    seen = [fingerprint_of(r := rf.generic(method, "/"), options, r) for method in ("POST", "PATCH", "POST")]
    assert seen[0] == seen[2] != seen[1]


def test_a_callable_must_return_bytes(post: Post) -> None:
    """Text has no bytes until somebody chooses an encoding."""
    with pytest.raises(IdempotencyConfigurationError, match="returned 'text'; return bytes"):
        post("/by_text")
    assert Order.objects.count() == 0


def test_a_callable_key_must_return_text(post: Post) -> None:
    """A number is not silently turned into a key."""
    with pytest.raises(IdempotencyConfigurationError, match="returned 7; return a str or None"):
        post("/numbered")
    assert Order.objects.count() == 0


def test_none_compares_nothing(post: Post) -> None:
    """Another payload is a replay, because the project said so."""
    assert [replayed(post("/unchecked", {"n": n})) for n in (1, 2)] == ["false", "true"]


@pytest.mark.parametrize(
    ("one", "two", "status"),
    [
        (b'{"amount":1,"note":"x"}', b'{"note":"y","amount":1}', 200),
        (b'{"amount":1}', b'{"amount":2}', 422),
        (b'{"amount":1}', b'{"amount":1,"currency":"EUR"}', 422),
        (b'{"amount":null}', b"{}", 422),
        (b"[1]", b"[1]", 200),
        (b"[1]", b"[2]", 422),
        (b"{", b"{", 200),
        (b"{", b"{{", 422),
    ],
)
def test_a_tuple_names_the_fields_that_count(post: Post, one: bytes, two: bytes, status: int) -> None:
    """A body without fields counts as a whole."""
    assert [post("/by_amount", body).status_code for body in (one, two)] == [200, status]


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        (b'{"a":1.10}', b'{"a":1.1}', False),
        (b'{"a":10000000000000000.0}', b'{"a":10000000000000001.0}', False),
        (b'{"a":1}', b'{"a":true}', False),
        (b'{"a":1}', b'{"a":"1"}', False),
        (b'{"a":"\\u00e9"}', '{"a":"é"}'.encode(), True),
        (b'{"a":[1,2]}', b'{"a":[2,1]}', False),
        (b'{"b":{"d":1,"c":2},"a":0}', b'{"a":0,"b":{"c":2,"d":1}}', True),
    ],
)
def test_json_is_compared_by_value(post: Post, one: bytes, two: bytes, equal: bool) -> None:
    """Never so loosely that two amounts become one."""
    assert [post("/raw", b).status_code for b in (one, two)] == [
        200,
        200 if equal else 422,
    ]


@pytest.mark.parametrize("content_type", ["application/json", FORM])
def test_more_than_can_be_parsed_again_is_compared_by_bytes(
    post: Post, monkeypatch: pytest.MonkeyPatch, content_type: str
) -> None:
    """The memory stays bounded. White space then is a difference."""
    monkeypatch.setattr("django_idempotency.engine.request.fingerprints.MAX_PARSED_BYTES", 8)
    answers = [post("/raw", body, content_type=content_type) for body in (b'{"a": 11}', b'{"a": 11}', b'{"a":  11}')]
    assert [(a.status_code, replayed(a)) for a in answers] == [(200, "false"), (200, "true"), (422, "false")]


def test_the_query_and_the_type_are_part_of_the_request(post: Post) -> None:
    """The parameters of the type, too; no charset means UTF-8."""
    assert post("/raw?a=1", b"{}").status_code == 200
    assert post("/raw?a=1", b"{}", content_type="Application/JSON; charset=utf-8").status_code == 200
    assert post("/raw?a=1", b"{}", content_type="application/json; profile=x").status_code == 422
    assert post("/raw?a=2", b"{}").status_code == 422
    assert post("/raw?a=1", b"{}", content_type="text/plain").status_code == 422


def test_bytes_that_are_no_text_are_told_apart(rf: RequestFactory) -> None:
    """Decoded as a form's charset says, both fields would be the same replacement character."""
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n%s\r\n--x--\r\n'
    bodies = [part % value for value in (b"\xff", b"\xfe", b"\xff")]
    kind = "multipart/form-data; boundary=x"
    seen = [fingerprint_of(r := rf.generic("POST", "/", body, content_type=kind), resolve(), r) for body in bodies]
    assert seen[0] == seen[2] != seen[1]


def fingerprint(rf: RequestFactory, body: bytes, content_type: str = "application/json", **options: Any) -> Any:
    request = rf.generic("POST", "/", body, content_type=content_type)
    return fingerprint_of(request, resolve(Idempotency(**options)), request)


@pytest.mark.parametrize("limit", [None, 20, 2_621_440])
@pytest.mark.parametrize("content_type", ["application/json", FORM])
def test_a_large_body_is_compared_by_its_bytes(
    rf: RequestFactory, settings: Any, content_type: str, limit: int | None
) -> None:
    """From 128 KiB on, under any setting: a retry after a change of the settings is the same request."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = limit
    one, other = (b"a=1&b=", b"b=%s&a=1") if content_type == FORM else (b'{"a":1,"b":"', b'{"b":"%s","a":1}')
    for length, equal in ((10, True), (131_072 - 20, True), (131_072, False)):
        text = b"x" * length
        first = one + text + (b"" if content_type == FORM else b'"}')
        assert (fingerprint(rf, first, content_type) == fingerprint(rf, other % text, content_type)) is equal
        assert fingerprint(rf, first, content_type) == fingerprint(rf, first, content_type)


@pytest.mark.urls("tests.integration.view_urls")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"data": b'{"a":1,"b":[1.50]}'}, {"data": b'{ "b" : [1.50],\n"a": 1}'}),
        (
            {"data": "a=1&b=2", "content_type": "application/x-www-form-urlencoded"},
            {"data": "b=2&a=1", "content_type": "application/x-www-form-urlencoded; charset=utf-8"},
        ),
        (
            {"data": encode_multipart("one", {"a": "1"}), "content_type": "multipart/form-data; boundary=one"},
            {"data": encode_multipart("two", {"a": "1"}), "content_type": "multipart/form-data; boundary=two"},
        ),
        (
            {"data": "a=1&csrfmiddlewaretoken=x", "content_type": "application/x-www-form-urlencoded"},
            {"data": "a=1&csrfmiddlewaretoken=y", "content_type": "application/x-www-form-urlencoded"},
        ),
    ],
)
def test_equal_payloads_are_replayed(post: Post, first: Any, second: Any) -> None:
    """Order, white space, boundaries and CSRF tokens are no difference."""
    assert [replayed(post("/create", **kwargs)) for kwargs in (first, second)] == ["false", "true"]


@pytest.mark.urls("tests.integration.view_urls")
@pytest.mark.parametrize(
    "other",
    [
        {"data": b'{"a":2}'},
        {"data": b'{"a":1.0}'},
        {"data": b'{"a":1}', "content_type": "text/plain"},
        {"data": b'{"a":1,"a":1}'},
        {"data": b"{"},
        {"path": "/create?x=1", "data": b'{"a":1}'},
    ],
)
def test_another_request_is_refused(post: Post, other: dict[str, Any]) -> None:
    """422, and nothing runs."""
    post("/create", b'{"a":1}')
    response = post(**{"path": "/create", **other})
    assert (response.status_code, replayed(response)) == (422, "false")
    assert Order.objects.count() == 1


@pytest.mark.urls("tests.integration.view_urls")
@pytest.mark.parametrize("path", ["/upload", "/upload_own_handlers"])
@pytest.mark.parametrize("csrf_parsed", [False, True])
def test_uploads_work_and_are_compared_by_content(key: str, path: str, csrf_parsed: bool) -> None:
    """3 MB with a new boundary is the same upload, another file is not, even if CSRF has parsed the form before."""
    if csrf_parsed and path == "/upload_own_handlers":
        pytest.skip("Django itself cannot change handlers after CSRF has parsed the form")
    client = Client(enforce_csrf_checks=csrf_parsed)
    client.cookies["csrftoken"] = token = "a" * 32

    def send(content: bytes, boundary: str) -> Any:
        data = {"note": "n", "csrfmiddlewaretoken": token, "file": SimpleUploadedFile("a.bin", content)}
        return client.post(
            path,
            encode_multipart(boundary, data),
            content_type=f"multipart/form-data; boundary={boundary}",
            headers={"Idempotency-Key": key},
        )

    content = bytes(range(256)) * 12_000
    first, second, third = send(content, "one"), send(content, "two"), send(content[:-1] + b"!", "one")
    assert first.json() == {"note": "n", "csrfmiddlewaretoken": token, "file": ["a.bin", 3_072_000]}
    assert (second.content, replayed(second)) == (first.content, "true")
    assert third.status_code == 422
    assert Order.objects.count() == 1


@pytest.mark.urls("tests.integration.view_urls")
def test_key_and_fingerprint_can_come_from_fields(post: Post) -> None:
    """A hidden form field, and the fields that count."""
    form = "application/x-www-form-urlencoded"
    send = [
        post("/by_field", f"event=e1&amount={a}&note={n}", key=None, content_type=form) for a, n in ("1x", "1y", "2x")
    ]
    assert [(r.status_code, replayed(r)) for r in send] == [(200, "false"), (200, "true"), (422, "false")]


def test_a_fingerprint_of_the_projects_own() -> None:
    """callable(request) -> bytes."""
    send = posting_to_a_view(fingerprint=lambda request: request.body[:3])
    assert [send(data).status_code for data in (b"abc1", b"abc2", b"x")] == [200, 200, 422]
    assert Order.objects.count() == 1
    with pytest.raises(IdempotencyConfigurationError, match="return bytes"):
        posting_to_a_view(fingerprint=lambda request: "text")()


def test_chosen_fields_of_a_body_without_fields_are_the_whole_body() -> None:
    """A list, or something that is no JSON."""
    send = posting_to_a_view(fingerprint=("amount",))
    assert [send(data).status_code for data in (b"[1]", b"[ 1 ]", b"[2]", b"{")] == [200, 200, 422, 422]


def test_chosen_fields_of_json() -> None:
    """Only they count; a missing one is not a null."""
    send = posting_to_a_view(fingerprint=("amount", "to"))
    bodies = (b'{"amount":1,"note":"a"}', b'{"note":"b","amount":1}', b'{"amount":1,"to":null}')
    assert [send(data).status_code for data in bodies] == [200, 200, 422]


@pytest.mark.parametrize(
    ("content_type", "one", "two"),
    [
        ("application/json", b"[" * 100_000, b"[" * 100_001),
        ("application/json", b'"' + b"x" * 17_000_000 + b'"', b'"' + b"y" * 17_000_000 + b'"'),
        ("application/x-www-form-urlencoded", b"&".join([b"a=1"] * 1001), b"&".join([b"a=1"] * 1002)),
        ("multipart/form-data", b"no boundary", b"no boundary!"),
        ("multipart/form-data; boundary=b", b"--b\r\nnonsense", b"--b\r\nnonsense2"),
    ],
)
def test_what_cannot_be_parsed_is_compared_by_its_bytes(content_type: str, one: bytes, two: bytes) -> None:
    """Deep, huge, too many fields, or malformed: the view decides what it is worth."""
    send = posting_to_a_view()
    assert [send(data, content_type).status_code for data in (one, one, two)] == [200, 200, 422]


def test_a_body_that_somebody_has_consumed_is_an_error() -> None:
    """It says who may have done it and what to do."""
    with pytest.raises(IdempotencyConfigurationError, match="consumed before the view"):
        posting_to_a_view()(consumed=True)
    assert posting_to_a_view(fingerprint=None)(consumed=True).status_code == 200


def test_a_path_in_another_urlconf_is_another_request(rf: RequestFactory) -> None:
    """A middleware has chosen it by the host. Else one host's view would get the answer of another's."""
    fingerprints = []
    for urlconf in (None, "billing.urls", "shipping.urls", "shipping.urls"):
        request = rf.post("/orders/")
        if urlconf:
            request.urlconf = urlconf
        fingerprints.append(fingerprint_of(request, resolve(), request))
    assert (len(set(fingerprints)), fingerprints[2] == fingerprints[3]) == (3, True)


def test_a_consumed_body_that_no_parser_takes_is_an_error(rf: RequestFactory) -> None:
    """There are no bytes left to compare."""
    request = rf.post("/", b"x", content_type="text/x")
    request.read()
    with pytest.raises(IdempotencyConfigurationError, match="consumed before the view"):
        fingerprint_of(request, resolve(), request, unparsed=True)
