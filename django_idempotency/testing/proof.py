"""What a client can do to an endpoint, one method each, and what is wrong said in plain words."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from ..engine.conf import settings
from ..models import IdempotencyKey
from .evidence import Effects, kept_rows, why_run_again, wrong
from .races import send_at_once
from .sending import Request

ORDER = "Put @idempotent directly above the view, or IdempotencyMixin before the view's other base classes."


class Proof:
    """The tries, in order: each relies on those before it. Every one raises AssertionError.

    own_header: is the key carried by the package's header, so that it is known how the row is found?
    """

    def __init__(self, request: Request, *, effects: Effects, alias: str, own_header: bool) -> None:
        self.request = request
        self.effects = effects
        self.alias = alias
        self.own_header = own_header
        self.key = str(uuid4())

    def first(self, expect_status: int | None) -> None:
        """It is accepted, first-hand, and does something."""
        __tracebackhide__ = True
        self.answer = answer = self.request.send(self.key)
        self.created = self.effects.grown()
        if answer.status != (answer.status if expect_status is None and answer.is_success else expect_status):
            expected = "" if expect_status is None else f", not with {expect_status}"
            raise self.wrong(
                f"the first request was answered with {answer.status}{expected}, so there is nothing to repeat.",
                f"Answer: {answer}",
                "Send what the endpoint accepts, by a client that may. A refusal that is kept: expect_status=.",
            )
        name = settings().replayed_header
        if answer.replayed is None:
            off = 'IDEMPOTENCY["ENABLED"] is False here. ' if not settings().enabled else ""
            redirected = "Is the client logged in? " if 300 <= answer.status < 400 else ""
            raise self.wrong(
                f"not protected: the answer has no {name} header.", f"Answer: {answer}", f"{off}{redirected}{ORDER}"
            )
        if answer.replayed:
            raise self.wrong(
                "a key that nobody has used before was answered with a replay.",
                f"Answer: {answer}",
                "The endpoint takes its key from elsewhere: say how to send one with with_key=. Or a view writes the "
                f"{name} header itself.",
            )
        if self.effects.known and self.created < 1:
            raise self.wrong(
                f"creates= proves nothing: the first request created {self.created} {self.effects.name}.",
                "Name what this endpoint creates, or leave creates= out.",
            )

    def retry(self) -> None:
        """The same request again gets the same answer, and nothing more happens."""
        __tracebackhide__ = True
        answer, grown, rows = self.request.send(self.key), self.effects.grown(), kept_rows(self.key, self.alias)
        tombstone = bool(rows) and rows[0].status == IdempotencyKey.Status.COMPLETED and rows[0].body is None
        expected = (409, answer.body) if tombstone else (self.answer.status, self.answer.body)
        same = (answer.status, answer.body) == expected
        if answer.replayed and same and not grown:
            return
        evidence = [f"First: {self.answer}", f"Retry: {answer}", self.effects.said(grown)]
        if answer.replayed:
            raise self.wrong(
                "executed twice: the retry says that it is a replay, but "
                + ("the view has run again." if grown else "its answer is another one."),
                *evidence,
                "Let this package keep the answer, in the view's own transaction: do not set the header by hand.",
            )
        if answer.is_reuse:
            raise self.wrong(
                "no replay: the same request was taken for another one.",
                *evidence,
                "fingerprint= must return the same bytes for a retry: no time, no random token.",
            )
        what = "the view has run again" if answer.status == self.answer.status else f"the retry got {answer.status}"
        raise self.wrong(f"no replay: {what}.", *evidence, why_run_again(self.answer, rows))

    def other_body(self, changed: Request) -> None:
        """Another body under the same key is refused."""
        __tracebackhide__ = True
        answer, grown = changed.send(self.key), self.effects.grown()
        own_format = settings().error_response is not None and 400 <= answer.status < 500
        if not answer.replayed and not grown and (answer.is_reuse or own_format):
            return
        evidence = [f"First: {self.answer}", f"Other: {answer}", self.effects.said(grown)]
        if answer.replayed or answer.is_success or grown:
            done = "got the first one's answer" if answer.replayed else "was run"
            raise self.wrong(
                f"mismatch accepted: another body under the same key {done}.",
                *evidence,
                "fingerprint= must cover what the endpoint acts on. Where that is so on purpose, pass changed= with a "
                "body that differs in it, or changed=None for fingerprint=None.",
            )
        raise self.wrong(
            f"another body under the same key was refused with {answer.status}, but not because of the key.",
            *evidence,
            "Pass changed= with another body that the endpoint would accept under a new key.",
        )

    def other_user(self, client: Any) -> None:
        """Another user with the same key does not see the first one's answer, nor that there is one."""
        __tracebackhide__ = True
        answer = self.request.send(self.key, client=client)
        self.effects.grown()
        evidence = [f"First: {self.answer}", f"Other: {answer}", "scope= must tell users apart; the default does."]
        if answer.replayed:
            raise self.wrong("leak: another user with the same key got the first one's answer.", *evidence)
        if answer.is_reuse:
            raise self.wrong("leak: another user was told that the key is in use.", *evidence)

    def no_key(self) -> None:
        """A request without a key is refused."""
        __tracebackhide__ = True
        answer, grown = self.request.send(None), self.effects.grown()
        if grown or answer.status < 400:
            raise self.wrong(
                "a request without a key was not refused.",
                f"Answer: {answer}",
                self.effects.said(grown),
                "If the key is optional here (required=False), pass required=False.",
            )

    def at_once(self, request: Request, duplicates: int) -> None:
        """Of many at once one runs; the others are told to wait, or get its answer."""
        __tracebackhide__ = True
        key = str(uuid4())
        answers = send_at_once(request, key, duplicates, self.alias)
        grown = self.effects.grown()
        done = [a for a in answers if a.status == self.answer.status and not a.is_conflict]
        ran = [a for a in done if not a.replayed]
        distinct = {answer.body for answer in done}
        tally = [f"Answers: {line}" for line in sorted({str(answer) for answer in answers})]
        evidence = [*tally, self.effects.said(grown)]
        if len(ran) > 1 or len(distinct) > 1 or grown > self.created:
            raise self.wrong(
                f"executed twice at once: of {duplicates} duplicates sent together more than one has run.",
                *evidence,
                'To look for the key first and write it afterwards lets both pass ("check, then act"). '
                "Claim it and work in one transaction, as @idempotent does.",
            )
        if bad := [a for a in answers if a not in done and not a.is_conflict and a.status != 503]:
            raise self.wrong(
                f"{len(bad)} of {duplicates} duplicates sent together were answered with {bad[0].status}.",
                *evidence,
                *{f"Raised: {a.raised}" for a in bad if a.raised},
                "A duplicate of a running request gets a conflict, or waits for its answer.",
            )
        if len(ran) != 1 or grown != self.created:
            raise self.wrong(f"none of {duplicates} duplicates sent together has done the work.", *evidence)
        after = request.send(key)
        if not after.replayed or self.effects.grown():
            raise self.wrong("no replay after duplicates sent together.", *evidence, f"Retry: {after}")

    def kept(self) -> None:
        """The answer comes from this package's table, in which nothing is left unfinished."""
        __tracebackhide__ = True
        rows = kept_rows(self.key, self.alias)
        if not any(row.status == IdempotencyKey.Status.COMPLETED for row in rows) and (rows or self.own_header):
            raise self.wrong(
                "the answer is replayed, but the key table does not hold it.",
                f"Rows with this key: {[f'{row.status}, {row}' for row in rows]}",
                "Something else keeps it, which this test can say nothing about. An endpoint that keeps its keys on "
                "another database (using=) needs the same using= here.",
            )

    def wrong(self, what: str, *evidence: object) -> AssertionError:
        return wrong(self.request, what, *evidence)
