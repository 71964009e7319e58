"""`crash_at_each_step`: stop a leased request at every boundary of its steps, retry it, and judge what ran twice."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from typing import Any
from uuid import uuid4

from .checks import EndpointChecks
from .requests import Reply, Request
from .stops import Boundary, Stopped, Watch, boundaries, watched

logger = logging.getLogger("django_idempotency.testing")


class CrashChecks:
    """One request for each boundary, under a key of its own: stopped there, then retried after its lease.

    Args:
        checks: knows how requests are sent, and counts what they create.
        new_request: called for each new key.
        repeatable: the names of the calls that may be made twice without a derived key.
    """

    def __init__(
        self, checks: EndpointChecks, new_request: Callable[[], Request], *, repeatable: Collection[str]
    ) -> None:
        self.checks = checks
        self.new_request = new_request
        self.repeatable = repeatable

    def run(self) -> None:
        """Check each boundary. Raises AssertionError at the first that fails."""
        __tracebackhide__ = True
        steps = self._undisturbed()
        for boundary, where in boundaries(steps):
            self._check(boundary, where)

    def _undisturbed(self) -> list[Any]:
        """Run a request as the measure of all others. Returns its steps."""
        __tracebackhide__ = True
        watch = Watch()
        with watched(watch):
            self.undisturbed = self.new_request().send(str(uuid4()))
        self.created = self.checks.created_rows.count_new()
        if self.undisturbed.status != self.checks.first.status:
            raise self._failure(
                f"the first request got {self.checks.first.status}, and the same request under another key got "
                f"{self.undisturbed.status}.",
                f"Response: {self.undisturbed}",
                "If the endpoint takes the same body only once, pass a function as data: it is called for each key.",
            )
        if not any(step.name for step in watch.steps):
            raise RuntimeError(
                "crash_at_each_step=True found no step to stop at: the request made no operation.call() and no "
                "operation.write(). An atomic view has none: it is one transaction, so leave the argument out. The "
                "client must call the view in this process, as django.test.Client does."
            )
        return watch.steps

    def _check(self, boundary: Boundary, where: str) -> None:
        __tracebackhide__ = True
        request, key = self.new_request(), str(uuid4())
        stopped, retried = Watch(boundary), Watch()
        self._stop(request, key, stopped, where)
        stopped.let_leases_lapse()
        try:
            with watched(retried):
                retry = request.send(key)
        except Exception as error:
            raise self._failure(f"stopped {where}, the retry raised {error!r}.", _told(stopped, retried)) from error
        created = self.checks.created_rows.count_new()
        evidence = [f"Undisturbed: {self.undisturbed}", f"Retry: {retry}", _told(stopped, retried)]
        if not retried.steps and retry.status >= 400 and stopped.is_held():
            logger.info("Stopped %s: the retry is held with %s.", where, retry.status)
            return
        self._judge_answer(retry, where, evidence)
        self._judge_calls(stopped, retried, where, evidence)
        self._judge_names(stopped, retried, where, evidence)
        if created != self.created:
            raise self._failure(
                f"stopped {where}, the stopped request and its retry created {created} "
                f"{self.checks.created_rows.name}; an undisturbed request creates {self.created}.",
                *evidence,
                "Write to the database inside operation.write() only: what stands outside runs again in each attempt.",
            )

    def _stop(self, request: Request, key: str, watch: Watch, where: str) -> None:
        __tracebackhide__ = True
        try:
            with watched(watch):
                reply = request.send(key)
        except Stopped:
            return
        if watch.stopped:
            raise self._failure(
                f"stopped {where}, the view went on.",
                f"Response: {reply}",
                "Code around the step catches BaseException, or everything (a bare except). Catch Exception.",
            )
        raise self._failure(
            f"a request under a new key never came to this point: {where}.",
            f"Response: {reply}",
            f"It used: {', '.join(map(str, watch.steps)) or 'no step'}.",
            "The same request must use the same steps. If its data change what it does, pass a function as data.",
        )

    def _judge_answer(self, retry: Reply, where: str, evidence: list[str]) -> None:
        __tracebackhide__ = True
        if retry.status != self.undisturbed.status:
            raise self._failure(
                f"stopped {where}, the retry got {retry.status}.",
                *evidence,
                "The view must come to the same answer when its finished steps return their kept results.",
            )
        if _shape(retry.body) != _shape(self.undisturbed.body):
            raise self._failure(
                f"stopped {where}, the retry got another kind of response.",
                *evidence,
                "Make the response from what the steps return: a retry gets the kept results.",
            )

    def _judge_calls(self, stopped: Watch, retried: Watch, where: str, evidence: list[str]) -> None:
        """A call that was made twice needs a derived key. `reconcile` records with a function of its own."""
        __tracebackhide__ = True
        again = retried.ran("call")
        for name, function in stopped.ran("call").items():
            if again.get(name) != function:
                continue
            if name in stopped.derived & retried.derived:
                logger.info(
                    "Stopped %s: call %r was made twice with the same derived key. The other side must recognise it.",
                    where,
                    name,
                )
            elif name in self.repeatable:
                logger.info("Stopped %s: call %r was made twice, as repeatable= allows.", where, name)
            else:
                raise self._failure(
                    f"stopped {where}, call {name!r} was made twice, and the other side cannot know that.",
                    *evidence,
                    f"Send operation.derive_key({name!r}) with the call, or set on_abandoned='hold'. If a second "
                    f"call does no harm, pass repeatable=[{name!r}].",
                )

    def _judge_names(self, stopped: Watch, retried: Watch, where: str, evidence: list[str]) -> None:
        """A step has the same name in each attempt, or its result is not found."""
        __tracebackhide__ = True
        known = {step.name for step in retried.steps}
        before = {step.name for step in stopped.steps}
        for kind in ("call", "write"):
            lost = {function: name for name, function in stopped.ran(kind).items() if name not in known}
            for name, function in retried.ran(kind).items():
                if name not in before and function in lost:
                    raise self._failure(
                        f"stopped {where}, {kind} {lost[function]!r} ran again under another name, {name!r}.",
                        *evidence,
                        "Give a step the same name in each attempt: no time, no random token.",
                    )

    def _failure(self, headline: str, *evidence: object) -> AssertionError:
        return self.checks.failure(headline, *evidence)


def _told(stopped: Watch, retried: Watch) -> str:
    return f"Ran before the stop: {_ran(stopped)}. Ran in the retry: {_ran(retried)}."


def _ran(watch: Watch) -> str:
    return ", ".join(str(step) for step in watch.steps if step.ran is not None) or "nothing"


def _shape(body: bytes) -> Any:
    """What two responses of one view have in common although their ids differ: names and types of their JSON."""
    try:
        return _types(json.loads(body))
    except ValueError:
        return None


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _types(inner) for name, inner in value.items()}
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
