"""The contract of the adapters: the same facts for each way to protect an operation (adapters.py)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_idempotency import TransactionBroken
from django_idempotency.endpoints import list_endpoints
from django_idempotency.engine.conf.options import NOT_FINAL
from django_idempotency.models import IdempotencyKey
from tests.contracts.adapters import (
    RUNS,
    Adapter,
    Answer,
    Refusal,
    adapters,
    answers,
    code,
    counts,
    create,
    marks,
    raises,
)
from tests.factories import UserFactory
from tests.shopapp.models import Ledger, Order

pytestmark = pytest.mark.django_db
adapter = adapters(lambda adapter: True)
http = adapters(lambda adapter: adapter.http)
answering = adapters(lambda adapter: adapter.answers_exceptions)


class TestKeys:
    def test_it_runs_once_and_is_replayed_byte_for_byte(self, adapter: Adapter) -> None:
        """Status, body and headers; the mark tells the replay."""
        send = adapter.protect(create)
        sent = [send() for _ in range(3)]
        assert marks(sent) == [(201, "false"), (201, "true"), (201, "true")]
        assert sent[0].kept == sent[1].kept == sent[2].kept
        assert (sent[0].headers["Location"], len(RUNS)) == (f"/orders/{Order.objects.get().pk}", 1)
        assert IdempotencyKey.objects.get().status == "completed"

    def test_another_key_is_another_operation(self, adapter: Adapter) -> None:
        send = adapter.protect(create)
        assert marks([send("a"), send("b"), send("a")]) == [(201, "false"), (201, "false"), (201, "true")]
        assert counts() == (2, 2)

    def test_another_payload_is_a_mismatch(self, adapter: Adapter) -> None:
        """Nothing runs, and the first payload is replayed still. The order of names does not matter."""
        send = adapter.protect(create)
        sent = [send(data=data) for data in ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 2, "a": 1})]
        assert [answer.status for answer in sent] == [201, 422, 201]
        assert (sent[2].replayed, counts()) == ("true", (1, 1))
        if adapter.http:
            assert (code(sent[1]), sent[1].headers["Content-Type"]) == ("already-used", "application/problem+json")

    def test_two_callers_are_two_keys(self, adapter: Adapter) -> None:
        """Each has its own order, and its own replay."""
        ada, bob = UserFactory(), UserFactory()
        send = adapter.protect(create)
        sent = [send(user=user) for user in (ada, bob, ada, bob)]
        assert [answer.replayed for answer in sent] == ["false", "false", "true", "true"]
        assert sent[0].kept == sent[2].kept != sent[1].kept == sent[3].kept
        assert IdempotencyKey.objects.values("scope").distinct().count() == 2

    def test_a_bad_key_is_refused_before_any_statement(self, adapter: Adapter) -> None:
        """A header has a syntax. Without HTTP the characters count."""
        send = adapter.protect(create)
        quotes = ('a"', "a,b")
        bad = ("", " ", "a b", "x" * 256, "ünï", *(quotes if adapter.http else ()))
        with CaptureQueriesContext(connection) as queries:
            refused = [send(key) for key in bad]
        assert ([answer.status for answer in refused], [query["sql"] for query in queries]) == ([400] * len(bad), [])
        assert RUNS == []
        if adapter.http:
            assert {code(answer) for answer in refused} == {"invalid-key"}
        else:
            assert [send(key).replayed for key in quotes] == ["false", "false"]

    def test_a_missing_key_is_refused(self, http: Adapter) -> None:
        """By the same problem in each framework."""
        with CaptureQueriesContext(connection) as queries:
            answer = http.protect(create)(None)
        assert (answer.status, answer.headers["Content-Type"], len(queries)) == (400, "application/problem+json", 0)
        assert "Link" not in answer.headers  # C24: there is no DOCS_URL to link to
        assert json.loads(answer.body) == {
            "type": "urn:django-idempotency:missing-key",
            "code": "missing-key",
            "meaning": "final",
            "title": "Idempotency-Key is missing",
            "status": 400,
            "detail": "This operation needs the request header Idempotency-Key with a unique value, such as a UUID.",
            "instance": "/orders",
        }

    def test_without_a_key_an_optional_operation_runs_as_it_is(self, http: Adapter) -> None:
        """No header, because no key was honoured."""
        send = http.protect(create, required=False)
        assert marks([send(None), send(None), send(), send()]) == [
            *[(201, None)] * 2,
            *[(201, "false"), (201, "true")],
        ]
        assert counts() == (3, 1)

    def test_an_expired_key_is_as_if_never_seen(self, adapter: Adapter) -> None:
        send = adapter.protect(create, ttl=60)
        send()
        row = IdempotencyKey.objects.get()
        assert round((row.expires_at - row.created_at).total_seconds()) == 60
        IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=2))
        assert [send().replayed for _ in range(2)] == ["false", "true"]
        assert counts() == (2, 1)


class TestOutcomes:
    def test_a_final_answer_is_kept_and_so_are_its_writes(self, http: Adapter) -> None:
        """A view's own 409 is final: sold out."""
        statuses = [200, 404, 409, 422]
        send = http.protect(answers(*statuses))
        for number, status in enumerate(statuses, start=1):
            sent = [send(f"k{status}") for _ in range(2)]
            assert marks(sent) == [(status, "false"), (status, "true")]
            assert (sent[0].kept == sent[1].kept, counts()) == (True, (number, number))

    def test_an_answer_that_is_not_final_frees_the_key(self, http: Adapter) -> None:
        """Its writes stay: a counter of wrong PINs counts."""
        statuses = sorted(NOT_FINAL) * 2
        send = http.protect(answers(*statuses))
        for number, status in enumerate(statuses, start=1):
            assert (marks([send()]), counts()) == ([(status, "false")], (number, 0))

    def test_a_server_error_is_rolled_back(self, http: Adapter) -> None:
        """The retry starts clean."""
        statuses = [500, 502, 503, 599] * 2
        send = http.protect(answers(*statuses))
        for status in statuses:
            assert (marks([send()]), counts()) == ([(status, "false")], (0, 0))
        assert len(RUNS) == 8

    def test_the_project_decides_what_is_final(self, http: Adapter) -> None:
        send = http.protect(answers(404), record=lambda response: response.status_code != 404)
        assert marks([send(), send()]) == [(404, "false")] * 2

    @pytest.mark.parametrize("status", [200, 302])
    def test_a_success_is_kept_under_record_success(self, http: Adapter, status: int) -> None:
        send = http.protect(answers(status), record="success")
        assert marks([send(), send()]) == [(status, "false"), (status, "true")]
        assert counts() == (1, 1)

    def test_an_error_is_rolled_back_under_record_success(self, http: Adapter) -> None:
        """The sender of a webhook repeats after any error, and the repeated event starts clean."""
        statuses = [400, 404, 409, 422, 429, 500] * 2
        send = http.protect(answers(*statuses), record="success")
        for status in statuses:
            assert (marks([send()]), counts()) == ([(status, "false")], (0, 0))
        assert len(RUNS) == 12

    def test_an_answer_to_an_exception_is_not_kept_under_record_success(self, answering: Adapter) -> None:
        send = answering.protect(raises(Refusal(402)), record="success")
        assert marks([send(), send()]) == [(402, "false")] * 2
        assert (counts(), len(RUNS)) == ((0, 0), 2)

    def test_nobody_decides_that_a_server_error_is_final(self, http: Adapter) -> None:
        send = http.protect(answers(500), record=lambda response: True)
        assert marks([send(), send()]) == [(500, "false")] * 2
        assert (counts(), len(RUNS)) == ((0, 0), 2)

    def test_an_exception_is_rolled_back_and_frees_the_key(self, adapter: Adapter) -> None:
        """It goes on as without the package, and the retry runs."""
        send = adapter.protect(raises(ZeroDivisionError("bug")))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="bug"):
                send()
        assert (counts(), len(RUNS)) == ((0, 0), 2)

    @pytest.mark.parametrize("status", [402, 404])
    def test_a_final_answer_to_an_exception_is_kept_without_the_writes(self, answering: Adapter, status: int) -> None:
        send = answering.protect(raises(Refusal(status)))
        sent = [send() for _ in range(2)]
        assert marks(sent) == [(status, "false"), (status, "true")]
        assert (sent[0].kept == sent[1].kept, counts(), len(RUNS)) == (True, (0, 1), 1)

    def test_another_answer_to_an_exception_frees_the_key(self, answering: Adapter) -> None:
        statuses = [401, 403, 412, 423, 429, 500, 503] * 2
        send = answering.protect(raises(*map(Refusal, statuses)))
        for status in statuses:
            assert (marks([send()]), counts()) == ([(status, "false")], (0, 0))
        assert len(RUNS) == 14

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    def test_a_hidden_database_error_is_no_success(self, adapter: Adapter) -> None:
        """Its writes are lost, so a 201 would be a lie."""
        if connection.vendor != "postgresql" and not adapter.http:
            pytest.skip("only PostgreSQL aborts the transaction by itself")
        Ledger.objects.create(entry="once")

        def hides(request: Any) -> Answer:
            try:
                Ledger.objects.create(entry="once")
            except IntegrityError:
                return Answer(201, '"hidden"')
            raise AssertionError

        with pytest.raises(TransactionBroken, match=r"with transaction\.atomic\(\)"):
            adapter.protect(hides)()
        assert not IdempotencyKey.objects.exists()

    @pytest.mark.parametrize(("options", "located"), [({"store_body": False}, False), ({"max_body_bytes": 5}, True)])
    def test_without_its_body_the_answer_leaves_a_tombstone(
        self, http: Adapter, options: dict[str, Any], located: bool
    ) -> None:
        """409, with the first Location unless the project keeps nothing; nothing runs again."""
        send = http.protect(create, **options)
        first, second = send(), send()
        assert (first.status, second.status, code(second)) == (201, 409, "response-not-stored")
        assert second.headers.get("Location") == (first.headers["Location"] if located else None)
        row = IdempotencyKey.objects.get()
        assert (counts(), row.status_code, row.headers == "[]", row.body) == ((1, 1), 201, not located, None)

    def test_a_cookie_is_for_the_first_client_alone(self, http: Adapter) -> None:
        """It may hold a session: no replay sends it, and it is not stored."""
        send = http.protect(lambda request: Answer(headers={"Set-Cookie": "a=secret"}, cookies={"b": "secret"}))
        first, second = send(), send()
        assert (first.replayed, first.headers["Set-Cookie"], first.cookies) == ("false", "a=secret", {"b": "secret"})
        assert (second.replayed, "Set-Cookie" in second.headers, second.cookies) == ("true", False, {})
        assert "secret" not in str(IdempotencyKey.objects.values().get())

    def test_a_body_of_the_allowed_length_is_stored(self, http: Adapter) -> None:
        work = lambda request: Answer(200, '"done"')  # noqa: E731
        measured = http.protect(work)("another")
        http.urls.urlpatterns.clear()  # type: ignore[attr-defined]
        send = http.protect(work, max_body_bytes=len(measured.body))
        assert marks([measured, send(), send()]) == [(200, "false"), (200, "false"), (200, "true")]

    @pytest.mark.parametrize("allowed", [True, False])
    def test_may_replay_is_asked_before_a_replay(self, http: Adapter, allowed: bool) -> None:
        send = http.protect(create, may_replay=lambda *asked: allowed)
        first, second = send(), send()
        assert (first.replayed, second.status) == ("false", 201 if allowed else 403)
        assert second.kept == first.kept if allowed else code(second) == "replay-refused"

    def test_methods_says_which_are_protected(self, http: Adapter) -> None:
        """Others pass, and have no header."""
        send = http.protect(create)
        assert marks([send(method=method) for method in ("put", "get", "put", "get")]) == [(201, None)] * 4
        if http.by_method:
            send = http.protect(create, methods=("PUT",), operation="put")
            http.urls.urlpatterns.reverse()  # type: ignore[attr-defined]
            sent = [send(method=method) for method in ("put", "put", "post", "get")]
            assert [answer.replayed for answer in sent] == ["false", "true", None, None]

    def test_options_can_ask_the_request(self, http: Adapter) -> None:
        """Scope, key and fingerprint."""
        named = lambda name: lambda request: request.headers.get(name)  # noqa: E731
        send = http.protect(create, scope=named("X-Tenant"), key=named("X-Event"), fingerprint=("amount",))
        sent = [
            send(None, {"amount": amount, "note": note}, headers={"X-Tenant": tenant, "X-Event": event})
            for tenant, event, amount, note in (
                *(("a", "1", 5, "x"), ("a", "1", 5, "y"), ("a", "1", 6, "x")),
                *(("b", "1", 5, "x"), ("a", "2", 5, "x")),
            )
        ]
        assert marks(sent) == [(201, "false"), (201, "true"), (422, "false"), (201, "false"), (201, "false")]
        assert set(IdempotencyKey.objects.values_list("scope", "key")) == {("a", "1"), ("b", "1"), ("a", "2")}

    def test_switched_off_it_runs_each_time(self, adapter: Adapter, settings: Any) -> None:
        """As if the package were not there."""
        settings.IDEMPOTENCY = {"ENABLED": False}
        send = adapter.protect(create)
        sent = [send() for _ in range(2)]
        assert [answer.replayed for answer in sent] == [None if adapter.http else "false"] * 2
        assert counts() == (2, 0)

    def test_paused_nothing_runs_and_nothing_is_replayed(self, adapter: Adapter, settings: Any) -> None:
        """Whatever else is switched off, and before a key is read. The pause ends without a trace."""
        send, asked = adapter.protect(create), []
        kept = send()
        for other in ({}, {"ENABLED": False}, {"OBSERVE": True}):
            for paused in (True, lambda: asked.append("whether") or True):
                settings.IDEMPOTENCY = {"PAUSED": paused, **other}
                with CaptureQueriesContext(connection) as statements:
                    refused = [send(key) for key in ("k", "new", "a b")]
                assert ([answer.status for answer in refused], [*statements]) == ([503] * 3, [])
                if adapter.http:
                    assert {(code(answer), answer.headers["Retry-After"]) for answer in refused} == {("paused", "60")}
        assert (asked, counts()) == (["whether"] * 9, (1, 1))
        settings.IDEMPOTENCY = {"PAUSED": lambda: False}
        assert send() == Answer(*kept.kept, replayed="true")

    def test_observed_it_runs_each_time(self, http: Adapter, caplog: pytest.LogCaptureFixture) -> None:
        """The log says what would have been replayed."""
        send = http.protect(create, observe=True)
        assert marks([send(), send()]) == [(201, None)] * 2
        assert Order.objects.count() == 2
        assert any("would" in record.getMessage() for record in caplog.records)

    def test_the_list_of_endpoints_shows_it(self, http: Adapter) -> None:
        """With its options. Other methods of the route are not protected."""
        http.protect(create, ttl=90)
        listed = list_endpoints(http.urls)  # type: ignore[arg-type]
        shown = {endpoint.method: endpoint.options and endpoint.options.ttl_seconds for endpoint in listed}
        assert (shown["POST"], shown.get("PUT")) == (90, None)
