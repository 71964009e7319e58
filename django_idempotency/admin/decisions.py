"""The admin pages on which a person makes decisions about keys.

Each page explains what the decision will do, and shows a preview of any result or response that was entered. It
requires permission to make decisions, and changes only keys that were shown on the page and have not changed since it
was opened.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.stores.transactions import atomically
from ..exceptions import IdempotencyConfigurationError, NotDecryptable, NotResolvable
from ..maintenance.earlier import earlier_results
from ..maintenance.recovery import ask
from ..models import IdempotencyKey
from .forms import DECISIONS, AnswerForm, DecisionForm, ReconcileForm, RecordForm, ReleaseForm, steps_of, version
from .links import Shown, show, shown
from .story import story_of
from .timeline import doubts_of, pasteable, results_of

Keys = QuerySet[IdempotencyKey]
NAME = "django_idempotency_idempotencykey"


def decision_urls(model_admin: Any) -> list[Any]:
    views = {form.name: model_admin.admin_site.admin_view(partial(settle_one, model_admin, form)) for form in DECISIONS}
    for alias in connections:  # a recovery commits its claim before it calls `reconcile`
        transaction.non_atomic_requests(using=alias)(views[ReconcileForm.name])
    return [path(f"<int:pk>/{name}/", view, name=f"{NAME}_{name}") for name, view in views.items()]


def settle_one(model_admin: Any, decision: type[DecisionForm], request: HttpRequest, pk: int) -> HttpResponse:
    """Handle a decision about one key. The key's page has a button for each decision."""
    rows = model_admin.get_queryset(request).filter(pk=pk)
    if not model_admin.may_decide(request, rows.first()):
        raise PermissionDenied
    page = _settle(model_admin, request, decision, rows)
    return page or HttpResponseRedirect("../change/")


@admin.action(description=gettext_lazy("Close the selected keys with a response"), permissions=["resolve"])
def answer_selected(model_admin: Any, request: HttpRequest, queryset: Keys) -> HttpResponse | None:
    return _settle(model_admin, request, AnswerForm, _ticked(model_admin, request, queryset))


@admin.action(description=gettext_lazy("Release the selected keys for retry"), permissions=["resolve"])
def release_selected(model_admin: Any, request: HttpRequest, queryset: Keys) -> HttpResponse | None:
    return _settle(model_admin, request, ReleaseForm, _ticked(model_admin, request, queryset))


def _ticked(model_admin: Any, request: HttpRequest, queryset: Keys) -> Keys:
    """Return the keys that the person has selected, up to `list_per_page` of them.

    The admin's "Select all" link is ignored, because it could select the whole table.
    """
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)[: model_admin.list_per_page]
    return queryset.filter(pk__in=ticked).order_by("pk")


def _settle(model_admin: Any, request: HttpRequest, decision: type[DecisionForm], rows: Keys) -> HttpResponse | None:
    """Show the form for a decision, preview the decision, or carry it out.

    Return the page to show, or None if a message has told the person what was done or why nothing can be decided.
    """
    show(rows, model_admin, request, results=True)
    keys = [shown(row) for row in rows if model_admin.may_decide(request, row) and decision.fits(shown(row).facts)]
    seen = request.POST["seen"].split() if "seen" in request.POST else [version(key.facts.row) for key in keys]
    keys = [key for key in keys if version(key.facts.row) in seen]
    if not keys:
        text = _("Nothing to decide: the keys have changed since you opened the page, or need no decision.")
        model_admin.message_user(request, text, messages.ERROR)
        return None
    earlier = {
        name: earlier_results(model_admin.get_queryset(request), keys[0].facts.row.operation, name)
        for name in (steps_of(keys) if decision is RecordForm else ())
    }
    form = decision(
        request.POST if "seen" in request.POST else None,
        keys=keys,
        earlier=earlier,
        user=request.user,
    )
    if form.is_valid() and form.was_previewed:
        if decision is ReconcileForm:
            _ask(model_admin, request, keys[0], form)
        else:
            _carry_out(model_admin, request, keys, form, len(set(seen)))
        return None
    context = {
        **model_admin.admin_site.each_context(request),
        "title": decision.label,
        "opts": IdempotencyKey._meta,
        "original": decision.label
        if "action" in request.POST
        else f"{decision.label}: {keys[0].operation} {keys[0].facts.row.reference}",
        "has_view_permission": True,
        "media": model_admin.media + form.media,
        "keys": [(key, doubts_of(key), results_of(key)) for key in keys],
        "key": keys[0],
        "story": story_of(keys[0].facts),
        "summary": _summary(keys),
        "action": request.POST.get("action", ""),  # empty on a single key's page
        "checkbox": ACTION_CHECKBOX_NAME,
        "doubts": sum(bool(key.facts.in_doubt) for key in keys),
        "examples": [(name, pasteable(results[0])) for name, results in earlier.items() if results and keys[0].secrets],
        "form": form,
        "previewed": form.digest if form.is_valid() else "",
    }
    return TemplateResponse(request, "admin/django_idempotency/idempotencykey/decision.html", context)


def _summary(keys: list[Shown]) -> list[tuple[str, int]]:
    """Summarize many keys: count them by operation, by step in doubt and by finished step."""
    named = Counter(key.operation for key in keys)
    named.update(_("in doubt: %(step)s") % {"step": step} for key in keys for step in key.facts.in_doubt)
    named.update(_("finished: %(step)s") % {"step": step} for key in keys for step in key.facts.finished)
    return list(named.items())


def _carry_out(model_admin: Any, request: HttpRequest, keys: list[Shown], form: DecisionForm, asked_for: int) -> None:
    """Carry out the decision for each key that hasn't changed in the meantime, and log it in the same transaction."""
    settle, needed, done = form.decision()
    said = {name: form.cleaned_data.get(name, False) for name in ("reason", "confirmed")}
    resolved = 0

    def carry_out(key: Shown) -> None:
        settle(key.facts.row, *needed, by=request.user.get_username(), **said)
        model_admin.log_change(request, key.facts.row, done)

    for key in keys:
        try:
            with suppress(NotResolvable):
                atomically(key.facts.row._state.db, partial(carry_out, key))
                resolved += 1
        except NotDecryptable as error:  # continue with the next key
            model_admin.message_user(request, str(error), messages.ERROR)
    if resolved:
        text = _("%(done)s Keys: %(count)d.") % {"done": done, "count": resolved}
        model_admin.message_user(request, text, messages.SUCCESS)
    if refused := asked_for - resolved:
        text = _("Left alone, because they have changed since you opened the page or a worker holds them: %(n)d.")
        model_admin.message_user(request, text % {"n": refused}, messages.ERROR)


def _ask(model_admin: Any, request: HttpRequest, key: Shown, form: DecisionForm) -> None:
    """Let `reconcile` decide, and tell the person what it returned."""
    try:
        asked = ask(key.facts.row, by=request.user.get_username(), reason=form.cleaned_data["reason"])
    except IdempotencyConfigurationError as error:
        model_admin.message_user(request, str(error), messages.ERROR)
        return
    told = f"{asked.outcome}: {asked.reason}"
    model_admin.log_change(request, key.facts.row, told)
    model_admin.message_user(request, told, messages.SUCCESS if asked.outcome == "completed" else messages.WARNING)
