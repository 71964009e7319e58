"""A leased key on its admin page: what the key waits for, and its steps as a timeline."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet
from django.utils.formats import localize
from django.utils.html import format_html, format_html_join
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ..maintenance.lookups import in_flight, unleased
from ..models import IdempotencyKey, IdempotencyStep
from .bodies import readable_json
from .sealed import readable, readable_error


def calls_in_doubt(obj: IdempotencyKey) -> list[str]:
    """Return the names of calls that were started and have no result, unless a worker is running them now."""
    if obj.status == IdempotencyKey.Status.COMPLETED or has_live_lease(obj):
        return []
    return [step.name for step in _steps(obj) if step.finished_at is None]


def has_live_lease(obj: IdempotencyKey) -> bool:
    """Return whether a worker holds a lease that has not expired by the database's clock."""
    return obj.locked_until is not None and in_flight(using=obj._state.db).filter(pk=obj.pk).exists()


def without_lease(obj: IdempotencyKey) -> bool:
    """Return whether the key is in progress although no worker holds it, and its work has committed a part."""
    return IdempotencyKey.objects.using(obj._state.db).filter(unleased(str(obj._state.db)), pk=obj.pk).exists()


def attention_text(obj: IdempotencyKey) -> str:
    """Return what the key waits for, in words."""
    if obj.status == IdempotencyKey.Status.COMPLETED:
        return _("None: the key is completed.")
    if has_live_lease(obj):
        return _("None: a worker holds the lease until %(time)s.") % {"time": _time(obj.locked_until)}
    if names := calls_in_doubt(obj):
        text = _("In doubt: these steps were started and have no result: %(names)s. Check whether they took effect.")
        return text % {"names": ", ".join(names)}
    if without_lease(obj):
        return _(
            "Stuck: the view ended its own transaction and did not come to its end. What it wrote before that is kept. "
            "Retries are refused. Check what was written, then decide."
        )
    if obj.locked_until is not None:
        return _("Stuck: the worker died or is too slow. The next retry takes the key over.")
    return _("None: the next retry runs the operation again.")


def timeline(obj: IdempotencyKey, *, results: bool) -> str:
    """Return a table of the steps in the order in which they were first started.

    Args:
        obj: the key.
        results: whether to show the results of the steps, and errors that are encrypted. Both may hold personal data.
    """
    live = has_live_lease(obj)
    rows = [
        (
            step.name,
            step.get_kind_display(),
            step.attempt,
            _time(step.started_at),
            _end(step, live=live),
            readable_error(obj, "error", step.error, step.name, allowed=results),
            format_html('<pre class="idempotency-body">{}</pre>', _result(obj, step)) if results else "",
        )
        for step in _steps(obj)
    ]
    if not rows:
        return _("The key has no steps.")
    titles = (_("step"), _("kind"), _("attempt"), _("started"), _("ended"), _("error"), _("result") if results else "")
    cells = format_html_join("", '<th scope="col">{}</th>', ((title,) for title in titles))
    body = format_html_join(
        "",
        '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>',
        rows,
    )
    return format_html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", cells, body)


def _steps(obj: IdempotencyKey) -> QuerySet[IdempotencyStep]:
    return IdempotencyStep.objects.using(obj._state.db).filter(key=obj).order_by("pk")


def _end(step: IdempotencyStep, *, live: bool) -> str:
    if step.finished_at is None:
        return _("running") if live else _("in doubt")
    seconds = (step.finished_at - step.started_at).total_seconds()
    return _("%(time)s, after %(seconds).3f s") % {"time": _time(step.finished_at), "seconds": seconds}


def _result(obj: IdempotencyKey, step: IdempotencyStep) -> str:
    if step.finished_at is None:
        return ""
    result = readable(obj, "result", step.result, step.name)
    return _("Done, but the result could not be stored.") if result is None else readable_json(result.encode())


def _time(value: datetime | None) -> str:
    return str(localize(localtime(value)))
