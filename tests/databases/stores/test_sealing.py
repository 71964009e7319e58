"""Encryption at rest: every store keeps its promises, keys rotate, and a row that cannot be read runs nothing."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.db import transaction
from django.db.models import F

from django_idempotency import NotDecryptable, run_once
from django_idempotency.engine.protocol.digests import digest
from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Mismatched
from django_idempotency.engine.stores import store_for
from django_idempotency.engine.stores.sealing import seal
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.maintenance.resolution import close_with, record_outcome
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.at_rest import NEW, OLD, everything
from tests.claims import SNAPSHOT, a_claim, complete, expire
from tests.contracts import test_stores
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, row
from tests.shopapp.models import Order
from tests.works import RUNS, place

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]


@pytest.fixture(autouse=True)
def _encrypted(settings: Any) -> None:
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    GATEWAY.reset()
    HOOKS.clear()
    RUNS.clear()


def keep() -> None:
    """Complete the key of `a_claim()`."""
    store = store_for("default")
    claimed = store.claim(a_claim())
    assert isinstance(claimed, Claimed)
    complete(store, claimed, SNAPSHOT)


def ask(**changes: Any) -> Any:
    """What a duplicate gets."""
    with transaction.atomic():
        return store_for("default").claim(a_claim(**changes))


class TestEncrypted(test_stores.TestStoreContract):
    """The contract of a store, with encryption switched on."""


class TestAtRest:
    def test_without_the_setting_the_response_is_stored_as_it_is(self, settings: Any) -> None:
        """Byte for byte as before the setting existed."""
        settings.IDEMPOTENCY = {}
        keep()
        assert row().headers == '[["Content-Type","x/y"],["X-\\u00dcn\\u00ef","q\\"\\\\"]]'
        assert bytes(row().body or b"") == SNAPSHOT.body

    def test_aes_gcm_alone_reads_what_is_stored(self) -> None:
        """A mark, then base64 of nonce and text; the body has neither. The place is associated data."""
        keep()
        stored = row()
        headers = urlsafe_b64decode((stored.headers or "").removeprefix("enc1:"))
        for column, token, plain in (
            ("headers", headers, b'[["Content-Type","x/y"],["X-\\u00dcn\\u00ef","q\\"\\\\"]]'),
            ("body", bytes(stored.body or b""), SNAPSHOT.body),
        ):
            texts = (str(stored.key_hash), str(stored.scope_hash), column, "201", "66" * 32)
            place = digest(*(text.encode() for text in texts))
            assert AESGCM(urlsafe_b64decode(OLD)).decrypt(token[:12], token[12:], place) == plain

    @pytest.mark.parametrize(
        "change",
        [{"status_code": 200}, {"fingerprint": b"g" * 32}, {"fingerprint": None}, {"headers": F("last_error")}],
    )
    def test_what_was_changed_in_the_database_is_never_decrypted(self, change: dict[str, Any]) -> None:
        """The status code and the fingerprint are covered, beside the place. The error's frames hold no plain text."""
        keep()
        error_of = IdempotencyKey.objects.get()
        IdempotencyKey.objects.update(last_error=seal(error_of, "last_error", "s3cret"))
        IdempotencyKey.objects.update(**change)
        with pytest.raises(NotDecryptable, match="was changed in the database") as caught:
            ask(fingerprint=None)
        frames, trace = [], caught.value.__traceback__
        while trace is not None:
            frames += [repr(value) for value in trace.tb_frame.f_locals.values()]
            trace = trace.tb_next
        assert not [text for text in frames if "s3cret" in text or repr(SNAPSHOT.body)[2:-1] in text]

    def test_results_and_errors_of_a_leased_key_are_encrypted(self, post: Post) -> None:
        """Of a call, of a write, of a call in doubt, and of the attempt."""
        HOOKS["at the end"] = breaks
        with pytest.raises(Broken):
            post("/pay")
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold")
        steps = IdempotencyStep.objects.order_by("pk").values_list("name", "result", "error")
        assert [(name, (result or "")[:5], (error or "")[:5]) for name, result, error in steps] == [
            ("charge", "enc1:", ""),
            ("order", "enc1:", ""),
            ("charge", "", "enc1:"),
        ]
        assert [(error or "")[:5] for error in IdempotencyKey.objects.values_list("last_error", flat=True)] == [
            "enc1:",
            "enc1:",
        ]
        assert b"it broke" not in everything()

    def test_a_retry_goes_on_from_encrypted_steps(self, post: Post) -> None:
        """One charge, one order."""
        HOOKS["at the end"] = breaks
        with pytest.raises(Broken):
            post("/pay")
        HOOKS.clear()
        assert post("/pay").json() == {"order": Order.objects.get().pk, "charge": GATEWAY.charges[0], "attempt": 2}
        assert post("/pay").headers["Idempotency-Replayed"] == "true"
        assert GATEWAY.calls == 1

    def test_a_retry_reads_what_was_fetched(self) -> None:
        """A fetched result is bound to its step, as all results are."""

        def work(operation: Any) -> Any:
            rate = operation.fetch("rate", lambda: {"rate": operation.attempt})
            return rate if operation.attempt == 2 else breaks()

        with pytest.raises(Broken):
            run_once(work, scope="s", operation="o", key="k", lease=60)
        assert (IdempotencyStep.objects.get().result or "")[:5] == "enc1:"
        assert run_once(work, scope="s", operation="o", key="k", lease=60).value == {"rate": 1}

    def test_what_an_operator_enters_is_encrypted(self, post: Post) -> None:
        """The outcome of a call and a response are bound to their row as all others are, and are read again."""
        GATEWAY.after = breaks
        for path in ("/pay/hold", "/hooked/hold"):
            HOOKS["view"] = lambda request: request.idempotency.call("charge", GATEWAY.charge, "k")
            with pytest.raises(Broken):
                post(path)
        pay_key, hooked_key = IdempotencyKey.objects.order_by("pk")
        record_outcome(pay_key, "charge", {"charge": "ch_s3cret"})
        close_with(hooked_key, replace(SNAPSHOT, headers=(("X-Closed", "s3cret"),), body=b"s3cret"))
        assert b"s3cret" not in everything()
        pay_key.refresh_from_db()
        assert ["tests.leases.Broken" in made.steps[0]["error"] for made in decisions_of(pay_key)] == [True]
        assert post("/pay/hold").json()["charge"] == "ch_s3cret"
        assert post("/hooked/hold").content == b"s3cret"


class TestKeys:
    def test_after_a_rotation_old_rows_are_read_and_new_rows_have_the_new_key(self, settings: Any) -> None:
        """The first key encrypts, all decrypt."""
        keep()
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW, OLD]}
        assert ask() == Completed(snapshot=SNAPSHOT)
        IdempotencyKey.objects.all().delete()
        keep()
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
        assert ask() == Completed(snapshot=SNAPSHOT)

    def test_rows_of_before_the_setting_are_read(self, settings: Any) -> None:
        """Keys in use when encryption is switched on are replayed."""
        settings.IDEMPOTENCY = {}
        keep()
        settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
        assert ask() == Completed(snapshot=SNAPSHOT)

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            (
                {"ENCRYPTION_KEYS": [NEW]},
                "cannot be decrypted by any key in IDEMPOTENCY['ENCRYPTION_KEYS']. Append the one",
            ),
            ({}, "is encrypted, and IDEMPOTENCY['ENCRYPTION_KEYS'] is not set. Set it to a list"),
        ],
        ids=["another key", "switched off"],
    )
    class TestMissing:
        def test_a_completed_key_is_refused(self, settings: Any, setting: Any, message: str, post: Post) -> None:
            """With what is missing; nothing runs, and with the right key the response is replayed."""
            first = post("/pay")
            settings.IDEMPOTENCY = setting
            with pytest.raises(NotDecryptable) as caught:
                post("/pay")
            assert message in str(caught.value)
            assert OLD not in str(caught.value)
            assert (GATEWAY.calls, Order.objects.count(), row().status) == (1, 1, "completed")
            settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
            assert post("/pay").content == first.content

        def test_the_steps_of_a_failed_key_are_not_run_again(
            self, settings: Any, setting: Any, message: str, post: Post
        ) -> None:
            """The attempt ends before its first step, and with the right key the next one goes on."""
            HOOKS["at the end"] = breaks
            with pytest.raises(Broken):
                post("/pay")
            HOOKS.clear()
            settings.IDEMPOTENCY = setting
            with pytest.raises(NotDecryptable) as caught:
                post("/pay")
            assert message in str(caught.value)
            assert (GATEWAY.calls, Order.objects.count(), row().status) == (1, 1, "failed")
            settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
            assert post("/pay").json()["attempt"] == 3
            assert (GATEWAY.calls, Order.objects.count()) == (1, 1)

        def test_what_needs_no_decryption_goes_on(self, settings: Any, setting: Any, message: str) -> None:
            """A mismatch is a mismatch, and a key that has expired is free: it is not stuck for ever."""
            keep()
            settings.IDEMPOTENCY = setting
            assert ask(fingerprint=b"g" * 32) == Mismatched()
            expire()
            assert isinstance(ask(), Claimed)


@pytest.mark.django_db(transaction=True)
def test_with_one_transaction_for_each_request_a_wrong_key_runs_nothing(settings: Any) -> None:
    """Where BEGIN and COMMIT travel with the claim: the connection is usable afterwards."""
    run_once(place, scope="s", key="k")
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    with pytest.raises(NotDecryptable):
        run_once(place, scope="s", key="k")
    assert run_once(place, scope="s", key="another").replayed is False
    assert Order.objects.count() == 2
