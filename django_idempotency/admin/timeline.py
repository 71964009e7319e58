"""The state of a leased key in words, and its steps as a timeline."""

from __future__ import annotations

from typing import Any

from django.utils.formats import localize
from django.utils.html import format_html, format_html_join
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ..engine.stores import store_for
from ..models import IdempotencyKey, IdempotencyStep
from .bodies import indented


def doubts(obj: IdempotencyKey) -> list[str]:
    """The names of calls that were started and have no result, if nobody live works on the key."""
    if obj.status == IdempotencyKey.Status.COMPLETED or is_live(obj):
        return []
    return [step.name for step in _steps(obj) if step.finished_at is None]


def is_live(obj: IdempotencyKey) -> bool:
    """Does a worker hold a lease that is not over, by the database's clock?"""
    return obj.locked_until is not None and not store_for(str(obj._state.db)).timeliness(obj.pk)[1]


def described(obj: IdempotencyKey) -> str:
    """What, if anything, the key is waiting for."""
    if obj.status == IdempotencyKey.Status.COMPLETED:
        return _("None: it is completed.")
    if is_live(obj):
        return _("None: a worker is at work on it until %(time)s.") % {"time": _time(obj.locked_until)}
    if names := doubts(obj):
        return _("In doubt: nobody knows whether these calls took effect: %(names)s.") % {"names": ", ".join(names)}
    if obj.locked_until is not None:
        return _("Stuck: its worker has died or is too slow. The next retry takes it over.")
    return _("None: the next retry runs again.")


def timeline(obj: IdempotencyKey, *, results: bool) -> str:
    """The steps in the order in which they were first started."""
    live = is_live(obj)
    rows = [
        (
            step.name,
            step.get_kind_display(),
            step.attempt,
            _time(step.started_at),
            _end(step, live=live),
            step.error or "",
            format_html('<pre class="idempotency-body">{}</pre>', _result(step)) if results else "",
        )
        for step in _steps(obj)
    ]
    if not rows:
        return _("It has no steps.")
    titles = (_("step"), _("kind"), _("attempt"), _("started"), _("ended"), _("error"), _("result") if results else "")
    cells = format_html_join("", '<th scope="col">{}</th>', ((title,) for title in titles))
    body = format_html_join(
        "",
        '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>',
        rows,
    )
    return format_html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", cells, body)


def _steps(obj: IdempotencyKey) -> Any:
    return obj.steps.using(obj._state.db).order_by("pk")


def _end(step: IdempotencyStep, *, live: bool) -> str:
    if step.finished_at is None:
        return _("running") if live else _("in doubt")
    seconds = (step.finished_at - step.started_at).total_seconds()
    return _("%(time)s, after %(seconds).3f s") % {"time": _time(step.finished_at), "seconds": seconds}


def _result(step: IdempotencyStep) -> str:
    if step.finished_at is None:
        return ""
    return _("Done, without a value that could be kept.") if step.result is None else indented(step.result.encode())


def _time(value: Any) -> str:
    return str(localize(localtime(value)))
