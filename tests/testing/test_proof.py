"""`assert_idempotent` on endpoints that keep the promise, and on real ones that break it."""

from __future__ import annotations

import io
from collections.abc import Callable
from threading import Barrier, Event, Semaphore, current_thread, main_thread
from typing import Any
from uuid import UUID

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.test import AsyncClient, Client, RequestFactory, override_settings

from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import assert_idempotent
from tests.factories import UserFactory
from tests.shopapp.models import Ledger, Order
from tests.testing import endpoint_urls

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]
DATA = {"reference": "a book", "amount": 1}
DUPLICATES = 4


@pytest.fixture(autouse=True)
def _fresh() -> None:
    endpoint_urls.KEPT.clear()
    endpoint_urls.HOOKS.clear()


@pytest.fixture
def fails(client: Client) -> Callable[..., str]:
    """The message of the failure, whose headline says this."""

    def check(path: str, headline: str, **arguments: Any) -> str:
        arguments = {"data": DATA, "creates": Order, "client": client, **arguments}
        with pytest.raises(AssertionError) as caught:
            assert_idempotent(arguments.pop("client"), path, **arguments)
        message = str(caught.value)
        assert message.startswith(f"POST {path}: {headline}"), message
        return message

    return check


def logged_in() -> Client:
    client = Client()
    client.force_login(UserFactory())
    return client


def only_at_once(action: Callable[[], Any]) -> Callable[[], Any]:
    """Run it in the threads of a race, not in the requests before and after."""
    return lambda: None if current_thread() is main_thread() else action()


class TestGoodEndpoints:
    @pytest.mark.parametrize("path", ["/good", "/asynchronous", "/secret", "/leased"])
    def test_one_line_proves_them(self, client: Client, path: str) -> None:
        """A plain view, an asynchronous one, one that keeps no body, one under a lease."""
        response = assert_idempotent(client, path, DATA, creates=Order)
        assert response.headers["Idempotency-Replayed"] == "false"
        assert Order.objects.count() == 1

    def test_two_users_have_a_key_each(self) -> None:
        """The other one's request is a first one too."""
        assert_idempotent(logged_in(), "/members", DATA, creates=Order, other_client=logged_in())
        assert Order.objects.count() == 2
        (key,) = set(IdempotencyKey.objects.values_list("key", flat=True))
        assert str(UUID(key)) == key

    def test_another_user_may_be_refused(self) -> None:
        """By a login, say: nothing has leaked."""
        assert_idempotent(logged_in(), "/members", DATA, other_client=Client())

    def test_an_optional_key(self, client: Client) -> None:
        """Is said, or is the project's default."""
        assert_idempotent(client, "/optional", DATA, creates=Order, required=False)
        with override_settings(IDEMPOTENCY={"REQUIRED": False}):
            assert_idempotent(client, "/good", DATA, creates=Order)
        assert Order.objects.count() == 2

    def test_a_key_that_comes_in_the_body(self, client: Client) -> None:
        """with_key puts it there."""
        assert_idempotent(client, "/by_field", DATA, creates=Order, with_key=lambda key: {"data": {"event": key}})
        assert_idempotent(client, "/by_field", creates=Order, with_key=lambda key: {"data": {"event": key}})
        assert Order.objects.count() == 2

    def test_a_key_in_another_header(self, client: Client) -> None:
        """With the headers that the request needs anyway."""
        assert_idempotent(
            client, "/by_header", headers={"X-Shop": "1"}, with_key=lambda key: {"headers": {"X-Event": f"e-{key}"}}
        )
        assert_idempotent(client, "/by_header", with_key=lambda key: {"HTTP_X_EVENT": key})

    def test_body_fields_for_the_key_need_a_body_of_fields(self, client: Client) -> None:
        """Bytes have none."""
        with pytest.raises(TypeError, match=r"data must be a dict of fields too, not b'x'"):
            assert_idempotent(client, "/raw", b"x", content_type="x/y", with_key=lambda key: {"data": {"event": key}})

    def test_a_field_that_counts_is_changed(self, client: Client) -> None:
        """Also if the fingerprint looks at one field only."""
        assert_idempotent(client, "/amounts", DATA, creates=Order)

    @pytest.mark.parametrize(
        ("data", "content_type"),
        [
            ({"a": True}, "application/json"),
            ({"a": [1, True, None, {"b": 1.5}], "c": "", "d": {}}, "application/json"),
            ([1, 2], "application/json"),
            ('{"a": "1"}', "application/json"),
            (b'{"a": null}', "application/json"),
            ("plain", "text/plain"),
            (b"\xff\x00", "application/octet-stream"),
            ({}, "application/json"),
            (None, "application/json"),
        ],
    )
    def test_any_body_is_sent_unchanged_and_changed(self, client: Client, data: Any, content_type: str) -> None:
        """JSON values and their text, other text, bytes, nothing."""
        assert_idempotent(client, "/raw", data, content_type=content_type, creates=Order)

    @pytest.mark.parametrize(
        ("file", "content_type"),
        [
            (SimpleUploadedFile("a.pdf", b"abc", content_type="image/png"), "image/png"),
            (io.StringIO("abc"), "application/octet-stream"),
        ],
    )
    def test_files_are_sent_whole_every_time(self, client: Client, file: Any, content_type: str) -> None:
        """A test client reads a file to its end; with another content it is another request."""
        file.read()
        response = assert_idempotent(client, "/upload", {"file": file}, creates=Order)
        assert response.json()["file"][1:] == [content_type, 3]

    def test_a_project_that_wants_quoted_keys(self, client: Client) -> None:
        """The form of the draft is sent."""
        with override_settings(IDEMPOTENCY={"REQUIRE_QUOTED_KEY": True}):
            assert_idempotent(client, "/good", DATA, creates=Order)

    def test_each_retry_carries_the_first_requests_cookies(self, client: Client) -> None:
        """The answer that set a session was lost."""
        assert_idempotent(client, "/visitor", DATA, creates=Order)
        assert not client.cookies

    def test_another_body_can_be_given_or_left_out(self, client: Client) -> None:
        """changed= is the body, None no body at all."""
        assert_idempotent(client, "/amounts", DATA, changed={**DATA, "amount": 2}, creates=Order)
        assert_idempotent(client, "/anything_goes", DATA, changed=None, creates=Order)

    @pytest.mark.django_db(databases=["default", "other"])
    def test_keys_on_another_database(self, client: Client) -> None:
        """using= says where."""
        assert_idempotent(client, "/elsewhere", DATA, using="other", creates=Order)

    @pytest.mark.parametrize(
        "creates",
        [Order.objects, Order.objects.filter(reference="a book"), Order.objects.count],
        ids=["manager", "queryset", "function"],
    )
    def test_what_is_created_can_be_named_in_many_ways(self, client: Client, creates: Any) -> None:
        """Besides the model."""
        assert_idempotent(client, "/good", DATA, creates=creates)

    def test_a_refusal_can_be_kept_too(self, client: Client) -> None:
        """expect_status says that it is meant."""
        Ledger.objects.create(entry="x")
        assert assert_idempotent(client, "/unique", {"entry": "x"}, expect_status=400).status_code == 400

    def test_the_projects_own_errors(self, client: Client) -> None:
        """In their format nobody can tell them apart, so any refusal counts."""
        with override_settings(IDEMPOTENCY={"ERROR_RESPONSE": "tests.testing.test_endpoints.own_error"}):
            assert_idempotent(client, "/good", DATA, creates=Order)

    def test_other_methods(self, client: Client) -> None:
        """In any case."""
        assert_idempotent(client, "/raw", {"a": 1}, method="patch", content_type="application/json", creates=Order)


def own_error(request: Any, problem: Any) -> Any:
    return endpoint_urls.HttpResponse("no", status=418)


class TestBrokenEndpoints:
    """Each is caught by its own message, which says what to do."""

    def test_not_protected(self, fails: Callable[..., str]) -> None:
        """No header says so."""
        message = fails("/unprotected", "not protected: the answer has no Idempotency-Replayed header.")
        assert message.endswith(
            "\n  Put @idempotent directly above the view, or IdempotencyMixin before the view's other base classes."
        )

    def test_switched_off(self, fails: Callable[..., str]) -> None:
        """The setting of a test project is the likely reason."""
        with override_settings(IDEMPOTENCY={"ENABLED": False}):
            assert 'IDEMPOTENCY["ENABLED"] is False here.' in fails("/good", "not protected")

    def test_not_logged_in(self, fails: Callable[..., str]) -> None:
        """A redirect is no order."""
        message = fails("/members", "not protected")
        assert "302 without Idempotency-Replayed, Location: /accounts/login/?next=/members" in message
        assert "Is the client logged in?" in message

    def test_not_accepted(self, fails: Callable[..., str]) -> None:
        """What is refused cannot be repeated."""
        Ledger.objects.create(entry="x")
        headline = "the first request was answered with 400, so there is nothing to repeat."
        assert "'there already'" in fails("/unique", headline, data={"entry": "x"})

    def test_not_the_expected_status(self, fails: Callable[..., str]) -> None:
        """Where one is given."""
        fails("/good", "the first request was answered with 201, not with 200, so", expect_status=200)

    def test_a_key_of_its_own(self, fails: Callable[..., str]) -> None:
        """A key that this test does not send makes every first request a replay."""
        Client().post("/by_header", DATA, headers={"X-Event": "one"})
        message = fails(
            "/by_header", "a key that nobody has used before was answered with a replay.", headers={"X-Event": "one"}
        )
        assert "with_key=" in message

    def test_creates_names_something_else(self, fails: Callable[..., str]) -> None:
        """A count that never grows would prove nothing."""
        fails("/creates_nothing", "creates= proves nothing: the first request created 0 Order rows.")

    def test_never_kept(self, fails: Callable[..., str]) -> None:
        """No replay: `record` refuses the answer."""
        message = fails("/never_kept", "no replay: the view has run again.")
        assert "It created 1 more Order rows." in message
        assert "record= says that a 201 is not final" in message

    def test_never_kept_but_always_the_same(self, fails: Callable[..., str]) -> None:
        """No replay: equal answers are none yet."""
        fails("/constant", "no replay: the view has run again.", creates=None)

    def test_a_scope_that_changes(self, fails: Callable[..., str]) -> None:
        """No replay: each request is another caller's."""
        message = fails("/nobody", "no replay: the view has run again.", creates=None)
        assert "Pass creates= to have rows counted." in message
        assert "scope= and operation= must be the same in a retry." in message

    def test_a_fingerprint_that_changes(self, fails: Callable[..., str]) -> None:
        """No replay: each request is another one."""
        assert "fingerprint=" in fails("/changing", "no replay: the same request was taken for another one.")

    def test_no_longer_there(self, fails: Callable[..., str]) -> None:
        """No replay, whatever else the retry is told."""
        IdempotencyKey.objects.all().delete()
        endpoint_urls.HOOKS["inside"] = lambda: IdempotencyKey.objects.update(status="in_progress")
        message = fails("/gone", "no replay: the retry got 409.")
        assert "The key table holds one row: in_progress, scope 'anonymous', operation 'POST gone'." in message

    def test_says_that_it_replays(self, fails: Callable[..., str]) -> None:
        """Executed twice, as its answer shows, and its rows."""
        headline = "executed twice: the retry says that it is a replay, but "
        assert "created 1 more Order rows" in fails("/marks_only", headline + "the view has run again.")
        fails("/marks_only", headline + "its answer is another one.", creates=None)

    def test_replays_the_bytes_and_runs(self, fails: Callable[..., str]) -> None:
        """Executed twice, as its rows show and nothing else."""
        fails("/runs_again", "executed twice: the retry says that it is a replay, but the view has run again.")

    def test_any_body_will_do(self, fails: Callable[..., str]) -> None:
        """Mismatch accepted: another body gets the first one's answer."""
        message = fails("/anything_goes", "mismatch accepted: another body under the same key got the first one's")
        assert "changed=None" in message

    def test_another_body_is_run(self, fails: Callable[..., str]) -> None:
        """Mismatch accepted: as if it had a key of its own."""
        fails("/by_body", "mismatch accepted: another body under the same key was run.")

    def test_another_body_is_refused_for_itself(self, fails: Callable[..., str]) -> None:
        """Which says nothing about the key."""
        headline = "another body under the same key was refused with 400, but not because of the key."
        fails("/picky", headline, changed={"reference": "refused"})

    def test_one_scope_for_everybody(self, fails: Callable[..., str]) -> None:
        """Leak: another user gets the first one's answer."""
        message = fails(
            "/everybody",
            "leak: another user with the same key got the first one's answer.",
            client=logged_in(),
            other_client=logged_in(),
        )
        assert "scope= must tell users apart" in message

    def test_one_scope_for_everybody_under_other_fingerprints(self, fails: Callable[..., str]) -> None:
        """Leak: another user learns that the key is in use."""
        fails(
            "/everybodys_mismatch",
            "leak: another user was told that the key is in use.",
            client=logged_in(),
            other_client=logged_in(),
        )

    @pytest.mark.parametrize("creates", [Order, None])
    def test_an_optional_key_that_should_be_required(self, fails: Callable[..., str], creates: Any) -> None:
        """Without a key it just runs, whether its rows are counted or not."""
        message = fails("/optional", "a request without a key was not refused.", creates=creates)
        assert "required=False" in message

    def test_refused_after_the_work(self, fails: Callable[..., str]) -> None:
        """Without a key it is refused, and has done something."""
        fails("/works_without_a_key", "a request without a key was not refused.")

    def test_kept_by_something_else(self, fails: Callable[..., str]) -> None:
        """A replay proves little if it is not known where it comes from."""
        fails("/check_then_act", "the answer is replayed, but the key table does not hold it.", changed=None)


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    @pytest.mark.parametrize("path", ["/good", "/asynchronous", "/leased", "/pollable"])
    def test_a_good_endpoint_passes(self, client: Client, path: str) -> None:
        """Two operations: one by one, and together."""
        assert_idempotent(client, path, DATA, creates=Order, transaction=True)
        assert Order.objects.count() == 2

    @pytest.mark.parametrize("path", ["/leased", "/pollable"])
    def test_duplicates_meet_a_running_request(self, client: Client, path: str) -> None:
        """The first one works until it sees that all others were told: by 409, or by 202 and a page to look at."""
        told = Semaphore(0)
        endpoint_urls.HOOKS["inside"] = only_at_once(lambda: [told.acquire(timeout=30) for _ in range(DUPLICATES - 1)])

        class Telling(Client):
            def post(self, *args: Any, **kwargs: Any) -> Any:
                response = super().post(*args, **kwargs)
                if current_thread() is not main_thread():
                    statuses.append(response.status_code)
                    told.release()
                return response

        statuses: list[int] = []
        assert_idempotent(Telling(), path, DATA, creates=Order, transaction=True, duplicates=DUPLICATES)
        assert sorted(statuses) == {"/leased": [201, 409, 409, 409], "/pollable": [201, 202, 202, 202]}[path]

    def test_logged_in_clients_take_part(self) -> None:
        """Each thread has a copy with the same cookies."""
        assert_idempotent(logged_in(), "/members", DATA, creates=Order, transaction=True, duplicates=DUPLICATES)

    def test_an_endpoint_that_takes_a_body_only_once(self, client: Client) -> None:
        """A function gives a new one for the second operation."""
        bodies = iter([{"entry": "one"}, {"entry": "two"}])
        assert_idempotent(client, "/unique", lambda: next(bodies), creates=Ledger, transaction=True)
        assert set(Ledger.objects.values_list("entry", flat=True)) == {"one", "two"}

    def test_all_start_together(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody sends before everybody is ready."""
        ready: list[int] = []
        seen: list[int] = []

        class Watched(Barrier):
            def wait(self, timeout: float | None = None) -> int:
                ready.append(1)
                return super().wait(timeout)

        class Counting(Client):
            def post(self, *args: Any, **kwargs: Any) -> Any:
                if current_thread() is not main_thread():
                    seen.append(len(ready))
                return super().post(*args, **kwargs)

        monkeypatch.setattr("django_idempotency.testing.races.Barrier", Watched)
        assert_idempotent(Counting(), "/good", DATA, transaction=True, duplicates=DUPLICATES)
        assert seen == [DUPLICATES] * DUPLICATES

    @pytest.mark.parametrize(
        ("creates", "headers"),
        [(Order, {}), (None, {}), (None, {"X-Same-Body": "1"}), (None, {"X-Says-Replay": "1"})],
        ids=["by rows", "by answers", "by marks", "by bodies"],
    )
    def test_check_then_act(self, fails: Callable[..., str], creates: Any, headers: dict[str, str]) -> None:
        """Executed twice, and only then: everyone has looked before anyone writes. Each evidence is enough."""
        endpoint_urls.HOOKS["between"] = only_at_once(Barrier(DUPLICATES, timeout=30).wait)
        message = fails(
            "/check_then_act",
            "executed twice at once: of 4 duplicates sent together more than one has",
            creates=creates,
            headers=headers,
            changed=None,
            transaction=True,
            duplicates=DUPLICATES,
        )
        assert "check, then act" in message
        assert Order.objects.count() == 1 + DUPLICATES

    def test_work_outside_of_what_is_protected(self, fails: Callable[..., str]) -> None:
        """Executed twice, though one answer was first-hand: there are more rows."""
        endpoint_urls.HOOKS["for a duplicate"] = only_at_once(Order.objects.create)
        message = fails("/works_anyway", "executed twice at once", transaction=True, duplicates=DUPLICATES)
        assert f"It created {DUPLICATES} more Order rows." in message

    def test_check_then_fail(self, fails: Callable[..., str]) -> None:
        """Nothing runs twice, but duplicates get a 500."""
        endpoint_urls.HOOKS["between"] = only_at_once(Barrier(DUPLICATES, timeout=30).wait)
        message = fails(
            "/check_then_fail",
            "3 of 4 duplicates sent together were answered with 500.",
            creates=Ledger,
            changed=None,
            transaction=True,
            duplicates=DUPLICATES,
        )
        assert "Raised: " in message
        # PostgreSQL and SQLite name the constraint, MariaDB the value.
        assert "unique" in message.lower() or "Duplicate entry" in message

    def test_nobody_gets_through(self, fails: Callable[..., str]) -> None:
        """All are sent away."""
        endpoint_urls.HOOKS["between"] = only_at_once(lambda: True)
        fails(
            "/busy_at_once",
            "none of 4 duplicates sent together has done the work.",
            transaction=True,
            duplicates=DUPLICATES,
        )

    @pytest.mark.only_on("postgresql")
    def test_the_winner_is_not_kept(self, fails: Callable[..., str]) -> None:
        """One has run, the other was told to wait, and the retry runs again."""
        told = Event()
        endpoint_urls.HOOKS["inside"] = only_at_once(lambda: told.wait(30))
        endpoint_urls.HOOKS["afterwards"] = only_at_once(told.set)
        fails("/forgets", "no replay after duplicates sent together.", transaction=True, duplicates=2)

    def test_a_client_that_raises_is_not_hidden(self, client: Client) -> None:
        """Whatever a thread of the race raises ends the test, without waiting for the others."""

        class Unplugged(RequestFactory):
            def post(self, *args: Any, **kwargs: Any) -> Any:
                if current_thread() is not main_thread():
                    raise ConnectionError("unplugged")
                return client.post(*args, **kwargs)

        with pytest.raises(ConnectionError, match="unplugged"):
            assert_idempotent(Unplugged(), "/good", DATA, transaction=True, duplicates=1)

    def test_in_memory_sqlite_is_refused(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its threads would not really run at once."""
        monkeypatch.setattr(connections["default"], "vendor", "sqlite")
        monkeypatch.setattr(connections["default"], "is_in_memory_db", lambda: True, raising=False)
        with pytest.raises(RuntimeError, match=r"it is an in-memory SQLite\. Give it a file"):
            assert_idempotent(client, "/good", DATA, transaction=True)


def test_inside_a_transaction_nothing_can_run_at_once(client: Client) -> None:
    """Other connections see nothing of it; nothing has been sent yet."""
    with pytest.raises(RuntimeError, match=r"Use django\.test\.TransactionTestCase, or @pytest\.mark\.django_db"):
        assert_idempotent(client, "/good", DATA, transaction=True)
    assert not Order.objects.exists()


def test_an_asynchronous_client_is_refused(async_client: AsyncClient) -> None:
    """The other one tests asynchronous views too."""
    with pytest.raises(TypeError, match=r"needs django\.test\.Client, which tests asynchronous views too"):
        assert_idempotent(async_client, "/asynchronous")
