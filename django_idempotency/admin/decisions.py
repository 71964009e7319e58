"""Decisions that operators take about a key. Each has a page of its own, which explains the consequences first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.conf import get_settings
from ..exceptions import NotDecryptable, NotResolvable
from ..maintenance.decisions import correctable
from ..models import IdempotencyKey
from .examples import past_result
from .facts import Facts, facts_of
from .forms import AnswerForm, DecisionForm, RecordForm, ReleaseForm
from .permissions import may_resolve, may_see_responses
from .story import story_of
from .texts import readable_operation
from .timeline import pasteable

TEMPLATES = "admin/django_idempotency/idempotencykey"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One button on the page of a key, and the page that the button opens.

    Attributes:
        name: the last part of the address.
        label: of the button.
        explanation: what will happen.
        form: what the operator enters.
        warning: what may go wrong while something is in doubt.
        harmful: whether that is worse than an error. Such a button is red.
        steps: the names of the steps that the decision can be about. None: it is about the key.
    """

    name: str
    label: Any
    explanation: Any
    form: type[DecisionForm]
    warning: Any = ""
    harmful: bool = False
    steps: Callable[[Facts], list[str]] | None = None


def recordable(facts: Facts) -> list[str]:
    """Return the names of the steps in doubt, and of those whose result a person has recorded."""
    recorded = correctable(facts.row)
    return [*facts.doubts, *(name for name in facts.finished if name in recorded)]


DECISIONS = (
    Decision(
        name="record",
        label=gettext_lazy("Record an outcome"),
        explanation=gettext_lazy(
            "The call gets the result that you enter and is not made again. The next retry of the client continues "
            "with the step after the call. You can correct the result until the key is completed."
        ),
        form=RecordForm,
        steps=recordable,
    ),
    Decision(
        name="answer",
        label=gettext_lazy("Answer by hand"),
        explanation=gettext_lazy(
            "The key becomes completed. Nothing runs again, and every retry of the client gets the response that you "
            "enter. This cannot be undone."
        ),
        form=AnswerForm,
        warning=gettext_lazy(
            "Something is in doubt. After this answer, nothing asks again whether it took effect. Settle it with the "
            "other side first, and say in the reason what you have found."
        ),
    ),
    Decision(
        name="release",
        label=gettext_lazy("Release for retry"),
        explanation=gettext_lazy(
            "The next retry of the client runs at once. Steps that have a result are not run again. Calls in doubt are "
            "made again, with the same derived key."
        ),
        form=ReleaseForm,
        harmful=True,
        warning=gettext_lazy(
            "If what is in doubt did happen, it may happen twice: the customer may be charged twice. Release the key "
            "only if it did not happen, or if the called service honours the derived key."
        ),
    ),
)
"""The safe ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A decision that a user may take about a key now."""

    address: str
    decision: Decision


def possible_decisions(request: HttpRequest, obj: IdempotencyKey) -> list[Button]:
    """Return the decisions that this user may take about this key now."""
    facts = facts_of(obj)
    if not may_resolve(request) or not facts.resolvable:
        return []
    possible = (decision for decision in DECISIONS if decision.steps is None or decision.steps(facts))
    return [Button(address=reverse(f"admin:{_url_name(made)}", args=[obj.pk]), decision=made) for made in possible]


def decision_urls(model_admin: Any) -> list[Any]:
    return [
        path(
            f"<int:pk>/{decision.name}/",
            model_admin.admin_site.admin_view(partial(_decide, model_admin, decision)),
            name=_url_name(decision),
        )
        for decision in DECISIONS
    ]


def needs_a_look(facts: Facts) -> bool:
    """Whether a release needs the operator's word: something is in doubt, and the policy is not to repeat it.

    The policy speaks of calls. A write in doubt, or what a key without a lease has committed, would be made twice.
    """
    on_hold = bool(facts.doubts) and facts.row.policy != IdempotencyKey.Policy.RETRY
    return on_hold or facts.write_in_doubt or facts.unleased


def _url_name(decision: Decision) -> str:
    return f"django_idempotency_idempotencykey_{decision.name}"


def _decide(model_admin: Any, decision: Decision, request: HttpRequest, pk: int) -> HttpResponse:
    """Show the form on GET; on POST show the preview, or carry out what the preview has shown."""
    obj = model_admin.get_queryset(request).filter(pk=pk).first()
    if not (may_resolve(request) and model_admin.has_view_permission(request, obj)):
        raise PermissionDenied
    if obj is None:
        raise Http404(f"There is no idempotency key with the id {pk}.")
    facts = facts_of(obj)
    key_page = reverse("admin:django_idempotency_idempotencykey_change", args=[pk])
    if not facts.resolvable or (decision.steps is not None and not decision.steps(facts)):
        model_admin.message_user(request, _("There is nothing to decide about this key now."), messages.ERROR)
        return HttpResponseRedirect(key_page)
    examples = _examples(model_admin, request, decision, facts)
    given: dict[str, Any] = {"attempt": obj.attempt, "looked": needs_a_look(facts)}
    if decision.steps is not None:
        given |= {"steps": decision.steps(facts), "examples": examples}
    form = decision.form(request.POST if request.method == "POST" else None, **given)
    if form.is_valid() and form.was_previewed:
        _carry_out(model_admin, request, obj, form)
        return HttpResponseRedirect(key_page)
    return _form_page(model_admin, request, decision, facts, form, examples)


def _examples(model_admin: Any, request: HttpRequest, decision: Decision, facts: Facts) -> dict[str, str]:
    """A past result of each step that can be recorded, as it is kept, for those who may see results."""
    if decision.steps is None or not may_see_responses(request):
        return {}
    keys = model_admin.get_queryset(request)
    found = {name: past_result(keys, facts.row, name) for name in decision.steps(facts)}
    return {name: kept for name, kept in found.items() if kept is not None}


def _carry_out(model_admin: Any, request: HttpRequest, obj: IdempotencyKey, form: DecisionForm) -> None:
    """Carry the decision out and write it to the admin's log, in one transaction."""
    using = obj._state.db
    decide, needed, done = form.decision()
    attempt, reason = form.cleaned_data["attempt"], form.cleaned_data["reason"]
    by = request.user.get_username()
    try:
        with transaction.atomic(using=using):
            decide(obj.pk, *needed, attempt=attempt, by=by, reason=reason, using=using)
            model_admin.log_change(request, obj, done)
    except NotResolvable:
        text = _("Nothing was changed: this key has changed since you opened the page. Check the key again.")
        model_admin.message_user(request, text, messages.ERROR)
    except NotDecryptable as error:
        model_admin.message_user(request, str(error), messages.ERROR)
    else:
        model_admin.message_user(request, done, messages.SUCCESS)


def _form_page(
    model_admin: Any,
    request: HttpRequest,
    decision: Decision,
    facts: Facts,
    form: DecisionForm,
    examples: dict[str, str],
) -> HttpResponse:
    obj = facts.row
    previewed = form.is_valid()
    context = {
        **model_admin.admin_site.each_context(request),
        "title": decision.label,
        "opts": IdempotencyKey._meta,
        "media": model_admin.media + form.media,
        "object": obj,
        "key": obj.key if may_see_responses(request) else obj.reference,
        "operation": readable_operation(obj.operation),
        "decision": decision,
        "in_doubt": decision.warning if facts.doubts else "",
        "calls_in_doubt": facts.doubts,
        "story": story_of(facts),
        "examples": [(name, pasteable(kept)) for name, kept in examples.items()],
        "runbook": get_settings().runbook_url,
        "form": form,
        "previewed": form.seen if previewed else "",
        "preview": getattr(form, "preview", "") if previewed else "",
        "warnings": form.warnings() if previewed else [],
    }
    return TemplateResponse(request, f"{TEMPLATES}/decision.html", context)
