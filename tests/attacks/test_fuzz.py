"""Whatever bytes a client sends: no error that the bare view would not give, and never two runs.

The same bytes in each run; `HYPOTHESIS_EXAMPLES=5000` for a long one, which looks for new ones.
"""

from __future__ import annotations

import gzip
import json
import os
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from django_idempotency.engine.protocol.key_syntax import InvalidKey, parse_header
from django_idempotency.models import IdempotencyKey
from tests.attacks.pairs import READERS, RUNS, VIEWS
from tests.settings import REST_FRAMEWORK_INSTALLED

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.attacks.pairs")]
EXAMPLES = os.environ.get("HYPOTHESIS_EXAMPLES")
fuzz = settings(
    max_examples=int(EXAMPLES or 100),
    derandomize=EXAMPLES is None,
    deadline=None,
    # The transaction of the test spans all examples; each one has a key of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
READ_THE_STREAM = {"body", "stream", "lines", "loads"}
"""Views that read a body as bytes. Of a multipart form Django has read the stream already, for the comparison."""
NAMES = [*VIEWS, *(f"rest/{name}" for name in (*VIEWS, "data") if REST_FRAMEWORK_INSTALLED)]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Errors of bare views are no news here."""
    caplog.set_level("CRITICAL", logger="django")
    RUNS.clear()


@pytest.fixture
def attacker() -> Client:
    return Client(raise_request_exception=False)


# --- what is sent ------------------------------------------------------------------------------------------------

CHARSETS = ["", *(f"; charset={name}" for name in ("utf-8", "utf-16", "latin-1", "zlib", "idna", "undefined", "nope"))]
MEDIA_TYPES = st.one_of(
    st.sampled_from(
        [
            "application/json",
            "APPLICATION/JSON",
            "application/vnd.api+json",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "multipart/form-data; boundary=x",
            'multipart/form-data; boundary="x"',
            "Multipart/Form-Data; boundary=x",
            "multipart/form-data; boundary=" + "x" * 201,
            "multipart/form-data; boundary=\xff",
            "multipart/mixed; boundary=x",
            "text/plain",
            "application/octet-stream",
            "",
            ";",
            "a/b;" * 40,
        ]
    ),
    st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=30),
)
CONTENT_TYPES = st.builds(str.__add__, MEDIA_TYPES, st.sampled_from(CHARSETS))


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=4), values, max_size=3),
    max_leaves=8,
)
JSON = st.one_of(
    JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    st.integers(1, 40_000).map(nested),
    st.integers(1, 9_000).map(lambda depth: b'{"a":' * depth + b"1" + b"}" * depth),
    st.integers(1, 6_000).map(lambda digits: b'{"amount":' + b"9" * digits + b"}"),
    st.sampled_from(
        [
            b'{"a":1,"a":2}',
            b'"\\ud800"',
            b'{"\\udfff":"\\u0000"}',
            b"1e999",
            b"-0",
            b"NaN",
            b"\xef\xbb\xbf{}",
            b'{"a":1}\x00',
            "{}".encode("utf-16"),
        ]
    ),
)
PAIRS = st.lists(st.binary(max_size=12) | st.sampled_from([b"a=1", b"a=%00", b"%ff=%ED%A0%80", b"=", b"a"]), max_size=6)
FORM = PAIRS.map(b"&".join) | st.integers(990, 1_010).map(lambda fields: b"&".join([b"a=1"] * fields))
HEADER = st.sampled_from(
    [
        b'Content-Disposition: form-data; name="a"',
        b'Content-Disposition: form-data; name="a"; filename="f.txt"',
        b'Content-Disposition: form-data; name="a"; filename="../../f"',
        b"Content-Disposition: form-data; name=\"a\"; filename*=nope''%ff",
        b"Content-Disposition: form-data; name*=utf-8''%ff%00",
        b'Content-Disposition: form-data; name="\xff"',
        b"Content-Disposition: form-data",
        b"Content-Transfer-Encoding: base64",
        b"Content-Type: text/plain; charset=nope",
        b"Content-Length: -1",
        b"X: " + b"x" * 2_000,
        b"\xff\x00",
        b"",
    ]
)
PART = st.builds(
    lambda headers, content, mark: b"--" + mark + b"\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + content + b"\r\n",
    st.lists(HEADER, max_size=3),
    st.binary(max_size=20),
    st.sampled_from([b"x", b"x", b"x", b"y", b""]),
)
MULTIPART = st.builds(
    lambda parts, end, cut: (b"".join(parts) + end)[:cut],
    st.lists(PART, max_size=4),
    st.sampled_from([b"--x--\r\n", b"--x--", b"--y--\r\n", b""]),
    st.integers(1, 2_000) | st.none(),
)
BODIES = st.one_of(st.binary(max_size=50), JSON, FORM, MULTIPART, JSON.map(gzip.compress))


def labelled(bodies: Any, media_type: str) -> Any:
    return st.tuples(bodies, st.sampled_from(CHARSETS).map(media_type.__add__))


# Most of them under the content type that they are made for, or every parser would give up at its first byte.
REQUESTS = st.one_of(
    labelled(JSON, "application/json"),
    labelled(FORM, "application/x-www-form-urlencoded"),
    labelled(MULTIPART, "multipart/form-data; boundary=x"),
    st.tuples(BODIES, CONTENT_TYPES),
)
A_FIELD = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\r\n--x--\r\n'
A_FILE = A_FIELD.replace(b'name="a"', b"name=a; filename*=nope''%ff")


# --- differential: the bare view against the protected one ----------------------------------------------------


def send(client: Client, path: str, body: bytes, content_type: str, method: str = "POST", **environ: str) -> Any:
    return client.generic(method, path, body, content_type=content_type, **environ)  # type: ignore[arg-type]


def compare(client: Client, name: str, body: bytes, content_type: str, method: str = "POST") -> None:
    """Bare once, protected twice under a new key."""
    bare = send(client, f"/bare/{name}", body, content_type, method)
    RUNS.clear()
    key = {"HTTP_IDEMPOTENCY_KEY": str(uuid4())}
    first, second = (send(client, f"/protected/{name}", body, content_type, method, **key) for _ in range(2))
    if is_form(name, content_type, method) and first.status_code == second.status_code == 400:
        refused(key["HTTP_IDEMPOTENCY_KEY"])  # Django cannot read it, although the bare view has not asked
        return
    assert first.status_code == second.status_code == bare.status_code
    if "X-Ran" in bare.headers:
        assert first.content == second.content == bare.content
        marks = [response.headers["Idempotency-Replayed"] for response in (first, second)]
        assert (marks, len(RUNS)) == (["false", "true"], 1)
    else:
        refused(key["HTTP_IDEMPOTENCY_KEY"])


def is_form(name: str, content_type: str, method: str) -> bool:
    """Whether the stream is parsed before the view runs: by Django for POST, by the REST framework for any method."""
    read = method == "POST" or name.startswith("rest/")
    return read and content_type.strip().lower().startswith("multipart/form-data")


def refused(key: str) -> None:
    assert RUNS == []
    assert not IdempotencyKey.objects.filter(key=key).exists()


@fuzz
@given(name=st.sampled_from(NAMES), request=REQUESTS, method=st.sampled_from(["POST", "PATCH"]))
@example(name="nothing", request=(A_FIELD, "multipart/form-data; boundary=x; charset=zlib"), method="POST")
@example(name="nothing", request=(A_FIELD, "multipart/form-data; boundary=x; charset=undefined"), method="POST")
@example(name="body", request=(A_FIELD, "multipart/form-data; boundary=x; charset=undefined"), method="PATCH")
@example(name="form", request=(A_FILE, "multipart/form-data; boundary=x"), method="POST")
@example(name="body", request=(nested(100_000), "application/json"), method="POST")
@example(name="form", request=(b"--x\r\n" * 500, "multipart/form-data; boundary=x"), method="POST")
def test_what_the_bare_view_accepts_the_protected_one_accepts(
    attacker: Client, name: str, request: tuple[bytes, str], method: str
) -> None:
    """Any body under any content type: the same status and bytes, then a replay; a refusal claims nothing."""
    assume(name.rpartition("/")[2] not in READ_THE_STREAM or not is_form(name, request[1], method))
    compare(attacker, name, *request, method)


@pytest.mark.skipif(not REST_FRAMEWORK_INSTALLED, reason="about the REST framework")
@pytest.mark.parametrize("body", [b"{", nested(100_000), b"\xff", b"9" * 6_000])
@pytest.mark.parametrize("name", ["rest/body", "rest/data", "rest/nothing", "rest/stream"])
def test_the_rest_framework_leaves_it_to_the_handler_what_it_reads(attacker: Client, name: str, body: bytes) -> None:
    """What its parsers refuse may be what the handler wants; whoever asks for `data` gets the parser's error."""
    compare(attacker, name, body, "application/json")


def test_bytes_that_no_charset_has_are_told_apart(attacker: Client) -> None:
    """Two fields that a parser would show as the same replacement character are two requests to a view of bytes."""
    key = {"HTTP_IDEMPOTENCY_KEY": "k", "content_type": "application/x-www-form-urlencoded"}
    bodies = (b"a=\xff", b"a=\xff", b"a=\xfe")
    answers = [send(attacker, "/protected/body", body, **key) for body in bodies]
    assert [answer.status_code for answer in answers] == [200, 200, 422]


# --- the key's header -------------------------------------------------------------------------------------------

FIELDS = st.one_of(
    st.binary(max_size=300),
    st.text(st.sampled_from('ab"\\,;()=:?@%* \t'), max_size=12).map(str.encode),
    st.binary(max_size=20).map(lambda raw: b'"' + raw + b'"'),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=300).map(str.encode),
)


@fuzz
@given(name=st.sampled_from(["nothing", "rest/nothing"][: 1 + REST_FRAMEWORK_INSTALLED]), field=FIELDS)
@example(name="nothing", field=b'"a"; DROP TABLE')
@example(name="nothing", field=b"a\r\nSet-Cookie: admin=1")
@example(name="nothing", field=b"a\x00")
@example(name="nothing", field="ключ".encode())
def test_c33_any_header_is_a_key_or_400_without_one_statement(attacker: Client, name: str, field: bytes) -> None:
    """The bytes as a WSGI server hands them over; nothing of a key that is none comes back in a header."""
    text = field.decode("latin-1")
    refused = send(attacker, f"/protected/{name}", b"", "text/plain", HTTP_IDEMPOTENCY_KEY="")
    with CaptureQueriesContext(connection) as queries:
        answer = send(attacker, f"/protected/{name}", b"", "text/plain", HTTP_IDEMPOTENCY_KEY=text)
    try:
        key = parse_header(text)
    except InvalidKey:
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid-key")
        assert len(queries) == 0
        assert set(answer.headers) == set(refused.headers)
        return
    assert answer.status_code == 200
    assert IdempotencyKey.objects.filter(key=key).exists()


# --- keys in bodies -----------------------------------------------------------------------------------------------

EVENTS = st.dictionaries(st.just("id"), JSON_VALUES).map(lambda event: json.dumps(event).encode())


@fuzz
@given(
    name=st.sampled_from(sorted(READERS)),
    request=REQUESTS | labelled(EVENTS, "application/json"),
)
@example(name="json", request=(rb'{"id":"\ud800"}', "application/json"))
def test_any_body_has_a_key_or_is_400(attacker: Client, name: str, request: tuple[bytes, str]) -> None:
    """Or is an error of Django's own, for a form that it cannot read either. A refusal costs no statement."""
    IdempotencyKey.objects.all().delete()  # of another example, which may have had the same key
    with CaptureQueriesContext(connection) as queries:
        answer = send(attacker, f"/keyed/{name}", *request)
    if answer.status_code == 200:
        assert answer.headers["Idempotency-Replayed"] == "false"
        return
    assert len(queries) == 0
    assert answer.status_code == 400 or (name, send(attacker, "/bare/form", *request).status_code) == ("form", 500)
