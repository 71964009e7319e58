"""One decision about the keys that are ticked in the list."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..exceptions import NotDecryptable
from ..maintenance.resolution import resolve_all
from ..models import IdempotencyKey
from .badges import badge, mark
from .decisions import DECISIONS, TEMPLATES, Decision, needs_a_look
from .facts import facts_of
from .forms import DecisionForm
from .permissions import may_see_responses

ANSWER, RELEASE = (decision for decision in DECISIONS if decision.steps is None)
Keys = QuerySet[IdempotencyKey]


@admin.action(description=gettext_lazy("Answer the selected keys by hand"), permissions=["resolve"])
def answer_selected(model_admin: Any, request: HttpRequest, queryset: Keys) -> HttpResponse | None:
    return _decide(model_admin, request, queryset, ANSWER)


@admin.action(description=gettext_lazy("Release the selected keys for retry"), permissions=["resolve"])
def release_selected(model_admin: Any, request: HttpRequest, queryset: Keys) -> HttpResponse | None:
    return _decide(model_admin, request, queryset, RELEASE)


def _decide(model_admin: Any, request: HttpRequest, queryset: Keys, decision: Decision) -> HttpResponse | None:
    """Show the form with the keys; then the preview; then carry out what the preview has shown.

    Only keys that were ticked, never "all that match": that could be the whole table.
    """
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)[: model_admin.list_per_page]
    rows = list(queryset.filter(pk__in=ticked).exclude(status=IdempotencyKey.Status.COMPLETED).order_by("pk"))
    facts = [facts_of(row) for row in rows]
    rows = [known.row for known in facts if known.resolvable]
    if not rows:
        model_admin.message_user(request, _("There is nothing to decide about these keys now."), messages.ERROR)
        return None
    looked = any(needs_a_look(known) for known in facts)
    form = decision.form(request.POST if "decided" in request.POST else None, looked=looked)
    if form.is_valid() and form.was_previewed:
        _carry_out(model_admin, request, queryset, form)
        return None
    previewed = form.is_valid()
    mark(rows, queryset.db)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": decision.label,
        "opts": IdempotencyKey._meta,
        "media": model_admin.media + form.media,
        "action": request.POST["action"],
        "checkbox": ACTION_CHECKBOX_NAME,
        "decision": decision,
        "in_doubt": decision.warning if any(known.doubts for known in facts) else "",
        "doubts": sum(bool(known.doubts) for known in facts),
        "rows": [(row, badge(row.worst_state)) for row in rows],  # type: ignore[attr-defined]
        "with_keys": may_see_responses(request),
        "form": form,
        "previewed": form.seen if previewed else "",
        "preview": getattr(form, "preview", "") if previewed else "",
    }
    return TemplateResponse(request, f"{TEMPLATES}/selection.html", context)


def _carry_out(model_admin: Any, request: HttpRequest, queryset: Keys, form: DecisionForm) -> None:
    """Resolve the keys that are at the attempt which the operator has seen, each in a transaction with its log."""
    given = request.POST.getlist("seen")[: model_admin.list_per_page]
    pairs = [pair.split(":") for pair in given if re.fullmatch("[0-9]{1,18}:[0-9]{1,9}", pair)]
    decide, needed, done = form.decision()
    by, reason = request.user.get_username(), form.cleaned_data["reason"]
    seen = reduce(or_, (Q(pk=pk, attempt=attempt) for pk, attempt in pairs), Q(pk__in=[]))
    resolved = 0
    for row in queryset.filter(seen).order_by("pk"):
        try:
            with transaction.atomic(using=queryset.db):
                one = resolve_all([row], decide, *needed, by=by, reason=reason)
                if one.resolved:
                    model_admin.log_change(request, row, done)
        except NotDecryptable as error:  # the others need not wait for the missing encryption key
            model_admin.message_user(request, str(error), messages.ERROR)
        else:
            resolved += one.resolved
    refused = len(pairs) - resolved
    if resolved:
        text = ngettext("%(count)d key: %(done)s", "%(count)d keys: %(done)s", resolved)
        model_admin.message_user(request, text % {"count": resolved, "done": done}, messages.SUCCESS)
    if refused:
        text = ngettext(
            "%(count)d key was left as it is: it has changed, or a worker holds it.",
            "%(count)d keys were left as they are: they have changed, or a worker holds them.",
            refused,
        )
        model_admin.message_user(request, text % {"count": refused}, messages.ERROR)
