"""Decisions that operators take about a key. Each has a page of its own, which explains the consequences first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.protocol.snapshots import Snapshot
from ..exceptions import NotResolvable
from ..maintenance.resolution import close_with, record_outcome, release_for_retry
from ..models import IdempotencyKey
from .timeline import calls_in_doubt, has_live_lease

PERMISSION = "django_idempotency.resolve_idempotencykey"
CONTENT_TYPES = (
    ("application/json", "JSON"),
    ("application/problem+json", "JSON (RFC 9457)"),
    ("text/plain; charset=utf-8", gettext_lazy("plain text")),
)
"""Nothing that a browser runs: the answer goes out in the name of the site."""
AS_IT_IS = ("X-Content-Type-Options", "nosniff")
"""Browsers take the content type for true, and do not look into the body for HTML."""


class DecisionForm(forms.Form):
    """What the operator enters. `decide()` of each form returns what was done, for the operator and the admin's log."""

    # The attempt that the operator saw. The decision is refused if a worker has started another one since.
    attempt = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, calls: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class ReleaseForm(DecisionForm):
    def decide(self, row: IdempotencyKey, *, attempt: int, using: str | None) -> str:
        release_for_retry(row.pk, attempt=attempt, using=using)
        return _("Released for retry.")


class RecordForm(DecisionForm):
    step = forms.ChoiceField(label=gettext_lazy("call"))
    result = forms.CharField(
        label=gettext_lazy("result"),
        widget=forms.Textarea(attrs={"rows": 10, "class": "vLargeTextField"}),
        help_text=gettext_lazy(
            "The return value of the call, as JSON. Look it up in the records of the called service."
        ),
    )

    def __init__(self, *args: Any, calls: list[str], **kwargs: Any) -> None:
        super().__init__(*args, calls=calls, **kwargs)
        self.fields["step"].choices = [(name, name) for name in calls]  # type: ignore[attr-defined]

    def clean_result(self) -> Any:
        return _parsed(self.cleaned_data["result"])

    def decide(self, row: IdempotencyKey, *, attempt: int, using: str | None) -> str:
        step = self.cleaned_data["step"]
        record_outcome(row.pk, step, self.cleaned_data["result"], attempt=attempt, using=using)
        return _("Recorded the outcome of the call “%(step)s”.") % {"step": step}


class CloseForm(DecisionForm):
    status = forms.IntegerField(label=gettext_lazy("status code"), min_value=200, max_value=499, initial=200)
    content_type = forms.ChoiceField(label=gettext_lazy("content type"), choices=CONTENT_TYPES)
    body = forms.CharField(
        label=gettext_lazy("body"),
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 10, "class": "vLargeTextField"}),
    )

    def clean(self) -> None:
        super().clean()
        body: str = self.cleaned_data.get("body", "")
        # An empty body, such as that of a 204, is no JSON and needs none.
        if body and self.cleaned_data.get("content_type", "").endswith("json"):
            try:
                _parsed(body)
            except forms.ValidationError as error:
                self.add_error("body", error)

    def decide(self, row: IdempotencyKey, *, attempt: int, using: str | None) -> str:
        data = self.cleaned_data
        headers = (("Content-Type", data["content_type"]), AS_IT_IS)
        snapshot = Snapshot(status_code=data["status"], headers=headers, body=data["body"].encode())
        close_with(row.pk, snapshot, attempt=attempt, using=using)
        return _("Closed with status %(status)s.") % {"status": data["status"]}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise forms.ValidationError(_("This is not JSON: %(error)s.") % {"error": error}) from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One button on the page of a key, and the page that the button opens."""

    name: str
    label: Any
    explanation: Any
    form: type[ReleaseForm | RecordForm | CloseForm]
    only_in_doubt: bool = False


DECISIONS = (
    Decision(
        name="release",
        label=gettext_lazy("Release for retry"),
        explanation=gettext_lazy(
            "The next retry of the client runs at once. Steps that have a result are not run again. Calls in doubt are "
            "made again, with the same derived key. Choose this only if you know that these calls did not happen, or "
            "that the called service honours the key."
        ),
        form=ReleaseForm,
    ),
    Decision(
        name="record",
        label=gettext_lazy("Record an outcome"),
        explanation=gettext_lazy(
            "The call gets the result that you enter and is not made again. The next retry of the client continues "
            "with the step after the call."
        ),
        form=RecordForm,
        only_in_doubt=True,
    ),
    Decision(
        name="close",
        label=gettext_lazy("Close with a response"),
        explanation=gettext_lazy(
            "The key becomes completed. Nothing runs again, and every retry of the client gets the response that you "
            "enter."
        ),
        form=CloseForm,
    ),
)


def may_see_responses(request: HttpRequest) -> bool:
    """Whether this user may see stored responses, and the keys that get them."""
    return request.user.has_perm("django_idempotency.view_response")


def possible_decisions(request: HttpRequest, obj: IdempotencyKey) -> list[tuple[str, Any]]:
    """Return address and label of each decision that this user may take about this key now."""
    if not request.user.has_perm(PERMISSION) or not _is_resolvable(obj):
        return []
    in_doubt = bool(calls_in_doubt(obj))
    return [
        (reverse(f"admin:{_url_name(decision)}", args=[obj.pk]), decision.label)
        for decision in DECISIONS
        if in_doubt or not decision.only_in_doubt
    ]


def decision_urls(model_admin: Any) -> list[Any]:
    return [
        path(
            f"<int:pk>/{decision.name}/",
            model_admin.admin_site.admin_view(partial(_decide, model_admin, decision)),
            name=_url_name(decision),
        )
        for decision in DECISIONS
    ]


def _url_name(decision: Decision) -> str:
    return f"django_idempotency_idempotencykey_{decision.name}"


def _is_resolvable(obj: IdempotencyKey) -> bool:
    return obj.status != IdempotencyKey.Status.COMPLETED and not has_live_lease(obj)


def _decide(model_admin: Any, decision: Decision, request: HttpRequest, pk: int) -> HttpResponse:
    """Show the form on GET, carry the decision out on POST."""
    obj = model_admin.get_queryset(request).filter(pk=pk).first()
    if not (request.user.has_perm(PERMISSION) and model_admin.has_view_permission(request, obj)):
        raise PermissionDenied
    if obj is None:
        raise Http404(f"There is no idempotency key with the id {pk}.")
    calls = calls_in_doubt(obj)
    key_page = reverse("admin:django_idempotency_idempotencykey_change", args=[pk])
    if not _is_resolvable(obj) or (decision.only_in_doubt and not calls):
        model_admin.message_user(request, _("There is nothing to decide about this key now."), messages.ERROR)
        return HttpResponseRedirect(key_page)
    if request.method == "POST":
        form = decision.form(request.POST, calls=calls)
        if form.is_valid():
            _carry_out(model_admin, request, obj, form)
            return HttpResponseRedirect(key_page)
    else:
        form = decision.form(initial={"attempt": obj.attempt}, calls=calls)
    return _form_page(model_admin, request, obj, decision, form, calls)


def _carry_out(
    model_admin: Any, request: HttpRequest, obj: IdempotencyKey, form: ReleaseForm | RecordForm | CloseForm
) -> None:
    """Carry the decision out and write it to the admin's log, in one transaction."""
    using = obj._state.db
    try:
        with transaction.atomic(using=using):
            done = form.decide(obj, attempt=form.cleaned_data["attempt"], using=using)
            model_admin.log_change(request, obj, done)
    except NotResolvable:
        text = _("Nothing was changed: this key has changed since you opened the page. Check the key again.")
        model_admin.message_user(request, text, messages.ERROR)
    else:
        model_admin.message_user(request, done, messages.SUCCESS)


def _form_page(
    model_admin: Any,
    request: HttpRequest,
    obj: IdempotencyKey,
    decision: Decision,
    form: DecisionForm,
    calls: list[str],
) -> HttpResponse:
    context = {
        **model_admin.admin_site.each_context(request),
        "title": decision.label,
        "opts": IdempotencyKey._meta,
        "media": model_admin.media + form.media,
        "object": obj,
        "key": obj.key if may_see_responses(request) else obj.reference,
        "decision": decision,
        "calls_in_doubt": calls,
        "form": form,
    }
    return TemplateResponse(request, "admin/django_idempotency/idempotencykey/decision.html", context)
