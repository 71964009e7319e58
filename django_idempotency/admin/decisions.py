"""Decisions about one key, on its page, or about the keys that are ticked in the list: one way for both.

A page explains the consequences first, and shows the preview. What it judges, shows and decides about are the same
rows: those that this person may decide about, and that are as they were when the page was opened.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Max, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.conf import get_settings
from ..engine.stores.sealing import unseal
from ..exceptions import NotDecryptable
from ..maintenance.facts import Facts
from ..maintenance.resolution import resolve_all
from ..models import IdempotencyKey, IdempotencyStep
from . import overview
from .forms import DECISIONS, AnswerForm, DecisionForm, RecordForm, ReleaseForm, steps_of, version
from .links import Shown, show, shown
from .timeline import doubts_of, pasteable, results_of, value_text

Keys = QuerySet[IdempotencyKey]
NAME = "django_idempotency_idempotencykey"
PAGE = f"admin:{NAME}"
EXAMPLES = 200
"""Among how many of the latest results of a step an example is looked for."""


def buttons_for(model_admin: Any, request: HttpRequest, facts: Facts) -> list[tuple[str, type[DecisionForm]]]:
    """Return the decisions that this person may take about this key now, with their addresses."""
    if not model_admin.may_decide(request, facts.row):
        return []
    return [(reverse(f"{PAGE}_{form.name}", args=[facts.row.pk]), form) for form in DECISIONS if form.fits(facts)]


def decision_urls(model_admin: Any) -> list[Any]:
    view = model_admin.admin_site.admin_view
    return [
        path(f"<int:pk>/{form.name}/", view(partial(decide_one, model_admin, form)), name=f"{NAME}_{form.name}")
        for form in DECISIONS
    ]


def decide_one(model_admin: Any, decision: type[DecisionForm], request: HttpRequest, pk: int) -> HttpResponse:
    """A decision from the page of a key."""
    obj = model_admin.get_queryset(request).filter(pk=pk).first()
    if not model_admin.may_decide(request, obj):
        raise PermissionDenied
    if obj is None:
        raise Http404(f"There is no idempotency key with the id {pk}.")
    page = _decide(model_admin, request, decision, [obj])
    return page or HttpResponseRedirect(reverse(f"{PAGE}_change", args=[pk]))


@admin.action(description=gettext_lazy("Answer the selected keys by hand"), permissions=["resolve"])
def answer_selected(model_admin: Any, request: HttpRequest, queryset: Keys) -> HttpResponse | None:
    return _decide_selected(model_admin, request, AnswerForm, queryset)


@admin.action(description=gettext_lazy("Release the selected keys for retry"), permissions=["resolve"])
def release_selected(model_admin: Any, request: HttpRequest, queryset: Keys) -> HttpResponse | None:
    return _decide_selected(model_admin, request, ReleaseForm, queryset)


def _decide_selected(
    model_admin: Any, request: HttpRequest, decision: type[DecisionForm], queryset: Keys
) -> HttpResponse | None:
    """Only keys that were ticked, never "all that match": that could be the whole table."""
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)[: model_admin.list_per_page]
    rows = queryset.filter(pk__in=ticked).order_by("pk")
    return _decide(model_admin, request, decision, list(rows), action=request.POST["action"])


def _decide(
    model_admin: Any,
    request: HttpRequest,
    decision: type[DecisionForm],
    rows: list[IdempotencyKey],
    *,
    action: str = "",
) -> HttpResponse | None:
    """Show the form with the keys; then the preview; then carry out what the preview has shown. None: there is an end,
    and a message says which."""
    show(rows, model_admin, request, results=True)
    keys = [shown(row) for row in rows if model_admin.may_decide(request, row) and decision.fits(shown(row).facts)]
    seen = request.POST["seen"].split() if "seen" in request.POST else [version(key.row) for key in keys]
    keys = [key for key in keys if version(key.row) in seen]
    if not keys:
        text = _("There is nothing to decide now: no key is as it was when you opened the page, or none needs it.")
        model_admin.message_user(request, text, messages.ERROR)
        return None
    facts = [key.facts for key in keys]
    examples = _examples(model_admin, request, keys[0], steps_of(facts) if decision is RecordForm else [])
    form = decision(
        request.POST if "seen" in request.POST else None,
        keys=facts,
        examples={name: json.loads(value_text(kept)) for name, kept in examples.items()},
        user=request.user,
    )
    if form.is_valid() and form.was_previewed:
        _carry_out(model_admin, request, keys, form, asked_for=len(set(seen)))
        return None
    context = {
        **model_admin.admin_site.each_context(request),
        "title": decision.label,
        "opts": IdempotencyKey._meta,
        "media": model_admin.media + form.media,
        "keys": [(key, doubts_of(key), results_of(key)) for key in keys],
        "story": None if action else keys[0].story,
        "action": action,
        "checkbox": ACTION_CHECKBOX_NAME,
        "doubts": sum(bool(key.facts.in_doubt) for key in keys),
        "examples": [(name, pasteable(kept)) for name, kept in examples.items()],
        "runbook": get_settings().runbook_url,
        "form": form,
        "previewed": form.digest if form.is_valid() else "",
    }
    return TemplateResponse(request, "admin/django_idempotency/idempotencykey/decision.html", context)


def _carry_out(
    model_admin: Any, request: HttpRequest, keys: list[Shown], form: DecisionForm, *, asked_for: int
) -> None:
    """Decide about each key as it was seen, in a transaction with its entry in the admin's log."""
    decide, needed, done = form.decision()
    said = {"by": request.user.get_username(), "reason": form.cleaned_data["reason"]}
    confirmed = form.cleaned_data.get("confirmed", False)
    resolved = 0
    for key in keys:
        try:
            with transaction.atomic(using=key.row._state.db):
                one = resolve_all([key.row], decide, *needed, **said, confirmed=confirmed)
                if one.resolved:
                    model_admin.log_change(request, key.row, done)
        except NotDecryptable as error:  # the others need not wait for the missing encryption key
            model_admin.message_user(request, str(error), messages.ERROR)
        else:
            resolved += one.resolved
    if resolved:
        text = _("%(done)s Keys: %(count)d.") % {"done": done, "count": resolved}
        model_admin.message_user(request, text, messages.SUCCESS)
    if refused := asked_for - resolved:
        text = _("Left as they are, because they have changed since you opened the page or a worker holds them: %(n)d.")
        model_admin.message_user(request, text % {"n": refused}, messages.ERROR)


def _examples(model_admin: Any, request: HttpRequest, key: Shown, steps: list[str]) -> dict[str, str]:
    """What is kept of a past result of each step, for those who may see results: the newest under a completed key of
    the same operation. Looks at the latest results only: a range of the primary key, then single rows."""
    done = IdempotencyKey.Status.COMPLETED
    stored = IdempotencyStep.objects.using(key.row._state.db)
    newest = stored.aggregate(newest=Max("pk"))["newest"] or 0
    found = {}
    for name in steps if key.secrets else ():
        results = stored.filter(pk__gt=newest - overview.FILTERED, name=name).exclude(result=None)
        latest = dict(results.order_by("-pk").values_list("key_id", "pk")[:EXAMPLES])
        keys = model_admin.get_queryset(request).filter(pk__in=latest, operation=key.row.operation, status=done)
        owner = keys.order_by("-pk").first()
        with suppress(NotDecryptable, ValueError):
            kept = owner and unseal(owner, "result", stored.get(pk=latest[owner.pk]).result, name)
            if kept and value_text(kept):
                found[name] = kept
    return found
