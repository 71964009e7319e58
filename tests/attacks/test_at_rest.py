"""A reader of the tables, who may also write them, and who has no key of `ENCRYPTION_KEYS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone

from django_idempotency import NotDecryptable, get_operation, idempotent
from django_idempotency.checks import check_databases
from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from django_idempotency.maintenance import cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.at_rest import NEW, OLD, everything
from tests.claims import a_claim, claim_and_commit
from tests.heard import heard

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
SECRET = b"s3cret"


@idempotent(scope=lambda request: request.headers["X-Caller"])
def echo(request: HttpRequest) -> HttpResponse:
    """Let the client say what the body is."""
    return HttpResponse(request.body, headers={"X-Caller-Is": request.headers["X-Caller"]})


@idempotent(lease=60, scope=lambda request: request.headers["X-Caller"])
def leased(request: HttpRequest) -> HttpResponse:
    """One call, whose result is secret, and then an error that quotes the secret."""
    get_operation(request).call("look", lambda: "result s3cret")
    if request.headers["X-Caller"] == "unlucky":
        raise ValueError("error s3cret")
    return HttpResponse("done")


urlpatterns = [path("echo", echo), path("leased", leased)]


@pytest.fixture(autouse=True)
def _encrypted(settings: Any) -> Iterator[None]:
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    return


def sent(post: Post, path: str, body: bytes, caller: str = "alice") -> Any:
    return post(path, body, headers={"X-Caller": caller}, content_type="text/plain")


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_dump_shows_no_response_no_result_and_no_error(post: Post, settings: Any, encrypted: bool) -> None:
    """Body, headers, step results and errors, read by SQL; without the setting all of them are there."""
    if not encrypted:
        settings.IDEMPOTENCY = {}
    assert sent(post, "/echo", b"body s3cret").content == b"body s3cret"
    assert sent(post, "/leased", b"").content == b"done"
    with pytest.raises(ValueError, match="s3cret"):
        sent(post, "/leased", b"", "unlucky")
    assert IdempotencyKey.objects.count() == 3
    shown = [text in everything() for text in (b"body s3cret", b"result s3cret", b"ValueError: line", b"X-Caller-Is")]
    assert shown == [not encrypted] * 4
    assert b"error s3cret" not in everything()
    assert (SECRET in everything()) is not encrypted


def copied(column: str, source: IdempotencyKey, target: IdempotencyKey) -> None:
    IdempotencyKey.objects.filter(pk=target.pk).update(**{column: getattr(source, column)})


@pytest.mark.parametrize("columns", [["headers", "body"], ["body"], ["headers"]])
def test_a_strangers_response_cannot_be_moved_into_ones_own_row(post: Post, columns: list[str]) -> None:
    """What is encrypted is bound to key, caller and operation, each column by itself."""
    sent(post, "/echo", b"of alice s3cret", "alice")
    sent(post, "/echo", b"of mallory", "mallory")
    alice, mallory = IdempotencyKey.objects.order_by("pk")
    for column in columns:
        copied(column, alice, mallory)
    with pytest.raises(NotDecryptable, match="was changed in the database: the text, its place"):
        sent(post, "/echo", b"of mallory", "mallory")
    assert sent(post, "/echo", b"of alice s3cret", "alice").content == b"of alice s3cret"


def test_an_older_text_of_the_same_row_is_accepted(post: Post) -> None:
    """Nothing in it says which of them is the last, so whoever may write the table can bring an old response back."""
    row = IdempotencyKey.objects
    sent(post, "/echo", b"first")
    older = row.values("headers", "body", "fingerprint", "expires_at").get()
    row.update(expires_at=timezone.now() - timedelta(days=1))
    assert sent(post, "/echo", b"second").content == b"second"
    row.update(**older)
    assert sent(post, "/echo", b"first").content == b"first"


def test_a_text_cannot_be_moved_into_another_column(post: Post) -> None:
    """The result of a step is no response."""
    sent(post, "/echo", b"plain", "mallory")
    row = IdempotencyKey.objects.get()
    IdempotencyKey.objects.update(body=bytes(row.headers or "", "ascii").removeprefix(b"enc1:"))
    with pytest.raises(NotDecryptable, match=r"'body' of idempotency key [0-9a-f]{16} cannot be decrypted by any key"):
        sent(post, "/echo", b"plain", "mallory")


def test_a_result_cannot_be_moved_to_another_step_or_key(post: Post, django_capture_on_commit_callbacks: Any) -> None:
    """The attempt that would read the result runs nothing, and an error is reported."""
    with pytest.raises(ValueError, match="s3cret"):
        sent(post, "/leased", b"", "unlucky")
    IdempotencyStep.objects.update(name="another")
    lost = pytest.raises(NotDecryptable, match="was changed in the database: the text, its place")
    with heard() as told, django_capture_on_commit_callbacks(execute=True), lost:
        sent(post, "/leased", b"", "unlucky")
    assert [(one["event"], one["reason"].rpartition(".")[2]) for one in told] == [
        ("claimed", ""),
        ("error", "NotDecryptable"),
    ]
    assert list(IdempotencyStep.objects.values_list("name", flat=True)) == ["another"]


@pytest.mark.django_db(transaction=True)
def test_keys_that_cannot_be_decrypted_keep_no_other_key_stuck() -> None:
    """A cleanup reads no trail of decisions: it fails all of them, and leaves their trails as they are."""
    for number in range(3):
        assert isinstance(claim_and_commit(store_for("default"), a_claim(key=f"k{number}", lease=60)), Claimed)
    hour = timedelta(hours=1)
    IdempotencyKey.objects.update(locked_until=timezone.now() - 2 * hour, decisions="enc1:lost")
    IdempotencyKey.objects.filter(key="k2").update(locked_until=timezone.now() - hour, decisions=None)
    cleanup = cleanup_idempotency_keys(batch_size=2)
    assert (cleanup.unstuck, cleanup.stuck, cleanup.complete) == (3, 0, True)
    assert IdempotencyKey.objects.filter(decisions="enc1:lost").count() == 2


@pytest.mark.parametrize("changed", [b"gAAAAAB", b"", b"\xff\x00", b"plain s3cret"])
def test_a_changed_text_is_refused(post: Post, changed: bytes) -> None:
    """Any other bytes in the place of the encrypted body."""
    sent(post, "/echo", b"body")
    IdempotencyKey.objects.update(body=changed)
    with pytest.raises(NotDecryptable, match="cannot be decrypted by any key"):
        sent(post, "/echo", b"body")


@pytest.mark.parametrize("switched", ["on", "off", "never", "stays on"])
def test_no_body_of_a_client_poses_as_encrypted_or_as_plain(post: Post, settings: Any, switched: str) -> None:
    """A view that echoes the mark, or a real encrypted body of an earlier row, is replayed byte for byte."""
    sent(post, "/echo", b"earlier", "mallory")
    token = bytes(IdempotencyKey.objects.get().body or b"")
    keys = {"ENCRYPTION_KEYS": [OLD]}
    settings.IDEMPOTENCY = keys if switched in ("off", "stays on") else {}
    for number, body in enumerate((b"enc1:", b"enc1:" + token, token)):
        assert sent(post, "/echo", body, f"caller {number}").content == body
    settings.IDEMPOTENCY = keys if switched in ("on", "stays on") else {}
    for number, body in enumerate((b"enc1:", b"enc1:" + token, token)):
        if switched == "off":
            with pytest.raises(NotDecryptable, match="is not set"):
                sent(post, "/echo", body, f"caller {number}")
        else:
            answer = sent(post, "/echo", body, f"caller {number}")
            assert (answer.content, answer.headers["Idempotency-Replayed"]) == (body, "true")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ([OLD], None),
        ([NEW, OLD], None),
        ([NEW], "cannot be decrypted by any key in IDEMPOTENCY['ENCRYPTION_KEYS']"),
        (None, "is encrypted, and IDEMPOTENCY['ENCRYPTION_KEYS'] is not set"),
    ],
)
def test_w017_the_newest_rows_can_be_decrypted(post: Post, settings: Any, keys: Any, told: str | None) -> None:
    """After a rotation, by `check --database`: one message, however many rows there are."""
    for body in (b"a", b"b"):
        sent(post, "/echo", body, caller=body.decode())
    settings.IDEMPOTENCY = {} if keys is None else {"ENCRYPTION_KEYS": keys}
    found = [message.msg for message in check_databases(["default"]) if message.id == "django_idempotency.W017"]
    assert [told in message for message in found if told] == [True] * bool(told)
    assert bool(found) is bool(told)
