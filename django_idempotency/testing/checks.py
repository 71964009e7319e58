"""The checks that `assert_idempotent` makes. They fail if the endpoint is not idempotent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db.models import Manager, Model, QuerySet

from ..engine.conf import get_settings
from ..engine.protocol.key_syntax import new_key
from ..maintenance import find_key
from ..models import IdempotencyKey
from .requests import Reply, Request, send_at_once, without_credentials

Creates = type[Model] | Manager[Any] | QuerySet[Any] | Callable[[], int] | None


class EndpointChecks:
    """The checks for one endpoint. They must run in the order in which they are defined, because each needs the results
    of those before it.

    A check that fails raises AssertionError.

    Args:
        request: the request that is sent under new keys.
        creates: a model, manager, queryset or function that counts what the endpoint creates.
        alias: the database alias of the endpoint's keys. A model is also counted there.
        in_header: whether the key is sent in the package's header. If so, the key table must have a row with this key.
        in_table: whether the keys have rows in the key table; False if the endpoint has a backend.
    """

    first: Reply

    def __init__(self, request: Request, *, creates: Creates, alias: str, in_header: bool, in_table: bool) -> None:
        self.request = request
        self.alias = alias
        self.in_header, self.in_table = in_header, in_table
        self.key = new_key()
        self._count, self.name = _counter(creates, alias)
        self._counted = self._count()

    def first_request(self, expect_status: int | None) -> None:
        """The first request under a new key must be accepted, run the view and create something."""
        __tracebackhide__ = True
        self.first = reply = self.request.send(self.key)
        self.created = self.count_new()
        name = get_settings().replayed_header
        if reply.status not in (range(200, 400) if expect_status is None else (expect_status,)):
            expected = "" if expect_status is None else f", not with {expect_status}"
            headline = f"the first request was answered with {reply.status}{expected}, so there is nothing to repeat."
            advice = "Send what the endpoint accepts, as a user with permission. Or pass expect_status=."
        elif reply.replayed is None:
            headline = f"not protected: the response has no {name} header."
            maybe = "Is the client logged in?" if get_settings().enabled else 'IDEMPOTENCY["ENABLED"] is False here.'
            place = "Put @idempotent directly above the view, or IdempotencyMixin before the view's other base classes."
            advice = f"{place} {maybe}"
        elif reply.replayed:
            headline = "a new key was answered with a replay."
            advice = f"Pass with_key= if the endpoint reads its key from another place. No view may set {name} itself."
        elif self.name and self.created < 1:
            headline = f"creates= proves nothing: the first request created {self.created} {self.name}."
            advice = "Pass what this endpoint creates, or leave creates= out."
        else:
            return
        raise self.failure(headline, f"Response: {reply}", advice)

    def retry(self) -> None:
        """A repeated request must get the first response and must not create anything."""
        __tracebackhide__ = True
        reply, created = self.request.send(self.key), self.count_new()
        rows = self._rows()
        tombstone = bool(rows) and rows[0].status == IdempotencyKey.Status.COMPLETED and rows[0].body is None
        if tombstone and reply.is_not_stored and not created:
            return
        expected = self.first.status, self.first.body
        if reply.replayed and (reply.status, reply.body) == expected and not created:
            return
        if reply.replayed:
            what = "the view ran again" if created else "its response differs"
            headline = f"executed twice: the retry says that it is a replay, but {what}."
            advice = "Let this package store the response, in the view's own transaction. Do not set the header."
        elif reply.is_mismatch:
            headline = "no replay: the same request was taken for a different one."
            advice = "fingerprint= must return the same bytes for a retry: no time, no random token."
        else:
            what = "the view ran again" if reply.status == self.first.status else f"the retry got {reply.status}"
            headline = f"no replay: {what}."
            advice = (
                f"No row: record= says that a {self.first.status} is not final, or code outside this package set "
                "the header. Several rows: scope= and operation= must be the same in a retry."
            )
        evidence = [f"First: {self.first}", f"Retry: {reply}", self._told(created), _told_of(rows)]
        raise self.failure(headline, *evidence, advice)

    def changed_body(self, changed: Request) -> None:
        """A different body under the first key must be refused."""
        __tracebackhide__ = True
        reply, created = changed.send(self.key), self.count_new()
        # In a project's own error format, a mismatch looks like any other 4xx.
        in_own_format = get_settings().error_response is not None and 400 <= reply.status < 500
        if not reply.replayed and not created and (reply.is_mismatch or in_own_format):
            return
        headline = f"a different body under the same key was refused with {reply.status}, but not because of the key."
        advice = "Pass changed= with a different body that the endpoint would accept under a new key."
        if reply.replayed or reply.status < 400 or created:
            outcome = "got the first response" if reply.replayed else "was run"
            headline = f"mismatch accepted: a different body under the same key {outcome}."
            advice = (
                "fingerprint= must cover what the endpoint acts on. If it leaves fields out on purpose, pass changed= "
                "with a body that differs in the other fields. For fingerprint=None pass changed=None."
            )
        raise self.failure(headline, f"First: {self.first}", f"Other: {reply}", self._told(created), advice)

    def other_user(self, client: Any) -> None:
        """Another user who sends the first user's key must learn nothing about it."""
        __tracebackhide__ = True
        reply = replace(self.request, client=client, extra=without_credentials(self.request.extra)).send(self.key)
        self.count_new()
        if reply.replayed or reply.is_mismatch:
            learned = "got the first user's response" if reply.replayed else "was told that the key is in use"
            raise self.failure(
                f"leak: another user with the same key {learned}.",
                f"First: {self.first}",
                f"Other: {reply}",
                "scope= must tell users apart; the default does.",
            )
        if reply.replayed is None:
            # A login or a permission check has answered, so `scope` was never called.
            raise self.failure(
                "other_client never reached the protection, so it proves nothing.",
                f"Response: {reply}",
                "Log it in as another user with permission.",
            )

    def no_key(self) -> None:
        """A request without a key must be refused and must not create anything."""
        __tracebackhide__ = True
        reply, created = self.request.send(None), self.count_new()
        if created or reply.status < 400:
            raise self.failure(
                "a request without a key was not refused.",
                f"Response: {reply}",
                self._told(created),
                "If the key is optional here (required=False), pass required=False.",
            )

    def duplicates_at_once(self, request: Request, count: int) -> None:
        """One of several simultaneous duplicates must run; the others get a conflict, a replay or a 503."""
        __tracebackhide__ = True
        key = new_key()
        replies = send_at_once(request, key, count, self.alias)
        created = self.count_new()
        done = [reply for reply in replies if reply.status == self.first.status and not reply.is_conflict]
        ran = [reply for reply in done if not reply.replayed]
        bad = [reply for reply in replies if reply not in done and not reply.is_conflict and reply.status != 503]
        evidence = [*(f"Response: {line}" for line in sorted({str(reply) for reply in replies})), self._told(created)]
        sent = f"of {count} duplicates sent together"
        if len(ran) > 1 or len({reply.body for reply in done}) > 1 or created > self.created:
            raise self.failure(
                f"executed twice at once: more than one {sent} ran.",
                *evidence,
                'If a view looks for the key first and writes it later ("check, then act"), two duplicates both find '
                "none. Claim the key and do the work in one transaction, as @idempotent does.",
            )
        if bad:
            raised = {
                f"Raised: {reply.response.exc_info[1]}" for reply in bad if getattr(reply.response, "exc_info", 0)
            }
            advice = "A duplicate of a running request must get a conflict, or wait for the response."
            raise self.failure(f"{len(bad)} {sent} were answered with {bad[0].status}.", *evidence, *raised, advice)
        if len(ran) != 1 or created != self.created:
            raise self.failure(f"none {sent} did the work.", *evidence)
        retry = request.send(key)
        if not (retry.replayed or retry.is_not_stored) or self.count_new():
            raise self.failure("no replay after duplicates sent together.", *evidence, f"Retry: {retry}")

    def stored_response(self) -> None:
        """The key must have a completed row. Otherwise, code outside this package produced the replay."""
        __tracebackhide__ = True
        rows = self._rows()
        completed = any(row.status == IdempotencyKey.Status.COMPLETED for row in rows)
        if self.in_table and not completed and (rows or self.in_header):
            raise self.failure(
                "the response is replayed, but it is not in the key table.",
                _told_of(rows),
                "Other code stores the response, and this test cannot check that code. If the endpoint keeps its keys "
                "on another database (using=), pass the same using= here.",
            )

    def count_new(self) -> int:
        """Count what the endpoint has created since the last call."""
        before, self._counted = self._counted, self._count()
        return self._counted - before

    def failure(self, headline: str, *evidence: object) -> AssertionError:
        lines = [f"{self.request.method} {self.request.path}: {headline}", *(str(line) for line in evidence)]
        return AssertionError("\n  ".join(lines))

    def _told(self, created: int) -> str:
        return f"It created {created} more {self.name}." if self.name else "Pass creates= to count rows."

    def _rows(self) -> list[IdempotencyKey]:
        return [row for row in find_key(self.key, using=self.alias) if row.key == self.key] if self.in_table else []


def _counter(creates: Any, alias: str) -> tuple[Callable[[], int], str]:
    """Return a function that counts what `creates` covers, and a name for it in messages (empty without `creates`)."""
    if isinstance(creates, type) and issubclass(creates, Model):
        creates = creates._base_manager.using(alias)
    if isinstance(creates, (Manager, QuerySet)):
        return lambda: creates.all().count(), f"{creates.model.__name__} rows"
    return creates or (lambda: 0), "things that creates= counts" if creates else ""


def _told_of(rows: list[IdempotencyKey]) -> str:
    told = [f"{row.status}, scope {row.scope!r}, operation {row.operation!r}" for row in rows]
    return f"Rows of the key table with this key: {'; '.join(told) or 'none'}."
