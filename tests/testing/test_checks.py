"""The checks of `assert_idempotent`, sent one by one: good endpoints pass, each defect has a message of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.test import Client, override_settings

from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Ledger, Order
from tests.testing import endpoint_urls
from tests.testing.requests import DATA, logged_in

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]


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

    def test_a_field_that_counts_is_changed(self, client: Client) -> None:
        """Also if the fingerprint looks at one field only."""
        assert_idempotent(client, "/amounts", DATA, creates=Order)

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
        with override_settings(IDEMPOTENCY={"ERROR_RESPONSE": "tests.testing.test_checks.own_error"}):
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
        message = fails("/unprotected", "not protected: the response has no Idempotency-Replayed header.")
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
        message = fails("/by_header", "a new key was answered with a replay.", headers={"X-Event": "one"})
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
        fails("/marks_only", headline + "its response differs.", creates=None)

    def test_replays_the_bytes_and_runs(self, fails: Callable[..., str]) -> None:
        """Executed twice, as its rows show and nothing else."""
        fails("/runs_again", "executed twice: the retry says that it is a replay, but the view has run again.")

    def test_any_body_will_do(self, fails: Callable[..., str]) -> None:
        """Mismatch accepted: another body gets the first one's answer."""
        message = fails("/anything_goes", "mismatch accepted: another body under the same key got the first response")
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
            "leak: another user with the same key got the first user's response.",
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
        fails("/check_then_act", "the response is replayed, but the key table does not hold it.", changed=None)
