"""What a person may decide about a key: each on a page of its own that says what will happen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.protocol.snapshots import Snapshot
from ..exceptions import NotResolvable
from ..maintenance.resolution import close_with, record_outcome, release_for_retry
from ..models import IdempotencyKey
from .timeline import doubts, is_live

PERMISSION = "django_idempotency.resolve_idempotencykey"


class ReleaseForm(forms.Form):
    # What the person has seen: somebody may work on the key before the button is pressed.
    attempt = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, names: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def decide(self, row: IdempotencyKey, **which: Any) -> str:
        release_for_retry(row.pk, **which)
        return _("Released for retry.")


class RecordForm(ReleaseForm):
    step = forms.ChoiceField(label=gettext_lazy("call"))
    result = forms.CharField(
        label=gettext_lazy("result"),
        widget=forms.Textarea(attrs={"rows": 10, "class": "vLargeTextField"}),
        help_text=gettext_lazy("JSON: what the call would have returned, as the books of the other side say."),
    )

    def __init__(self, *args: Any, names: list[str], **kwargs: Any) -> None:
        super().__init__(*args, names=names, **kwargs)
        self.fields["step"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]

    def clean_result(self) -> Any:
        try:
            return json.loads(self.cleaned_data["result"], parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is not JSON: %(error)s.") % {"error": error}) from error

    def decide(self, row: IdempotencyKey, **which: Any) -> str:
        step = self.cleaned_data["step"]
        record_outcome(row.pk, step, self.cleaned_data["result"], **which)
        return _("Recorded the outcome of the call “%(step)s”.") % {"step": step}


class CloseForm(ReleaseForm):
    status = forms.IntegerField(label=gettext_lazy("status code"), min_value=200, max_value=499, initial=200)
    content_type = forms.CharField(label=gettext_lazy("content type"), initial="application/json", max_length=200)
    body = forms.CharField(
        label=gettext_lazy("body"),
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 10, "class": "vLargeTextField"}),
    )

    def clean_content_type(self) -> str:
        value: str = self.cleaned_data["content_type"]
        if not value.isascii() or not value.isprintable():
            raise forms.ValidationError(_("A content type has printable ASCII characters only."))
        return value

    def decide(self, row: IdempotencyKey, **which: Any) -> str:
        data = self.cleaned_data
        headers = (("Content-Type", data["content_type"]),)
        close_with(row.pk, Snapshot(status_code=data["status"], headers=headers, body=data["body"].encode()), **which)
        return _("Closed with status %(status)s.") % {"status": data["status"]}


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One button on the page of a key, and the page behind it."""

    name: str
    label: Any
    explanation: Any
    form: type[ReleaseForm]
    needs_doubt: bool = False


DECISIONS = (
    Decision(
        name="release",
        label=gettext_lazy("Release for retry"),
        explanation=gettext_lazy(
            "The next retry of the client runs at once. Steps that have a result are not run again. Calls in doubt are "
            "made again, with the same derived key: do this if you know that they did not happen, or that the other "
            "side honours the key."
        ),
        form=ReleaseForm,
    ),
    Decision(
        name="record",
        label=gettext_lazy("Record an outcome"),
        explanation=gettext_lazy(
            "The call gets the result that you enter and is not made again. The next retry of the client goes on from "
            "there."
        ),
        form=RecordForm,
        needs_doubt=True,
    ),
    Decision(
        name="close",
        label=gettext_lazy("Close with a response"),
        explanation=gettext_lazy(
            "The key is completed. Nothing runs again, and every retry of the client gets the response that you enter."
        ),
        form=CloseForm,
    ),
)


def possible_decisions(request: HttpRequest, obj: IdempotencyKey) -> list[tuple[str, Any]]:
    """Address and label of each decision that this person may take about this key now."""
    if not request.user.has_perm(PERMISSION) or not _is_resolvable(obj):
        return []
    in_doubt = bool(doubts(obj))
    return [
        (reverse(f"admin:{_url_name(decision)}", args=[obj.pk]), decision.label)
        for decision in DECISIONS
        if in_doubt or not decision.needs_doubt
    ]


def decision_urls(model_admin: Any) -> list[Any]:
    site: admin.AdminSite = model_admin.admin_site
    return [
        path(
            f"<path:object_id>/{decision.name}/",
            site.admin_view(partial(_decide, model_admin, decision)),
            name=_url_name(decision),
        )
        for decision in DECISIONS
    ]


def _url_name(decision: Decision) -> str:
    return f"django_idempotency_idempotencykey_{decision.name}"


def _is_resolvable(obj: IdempotencyKey) -> bool:
    return obj.status != IdempotencyKey.Status.COMPLETED and not is_live(obj)


def _decide(model_admin: Any, decision: Decision, request: HttpRequest, object_id: str) -> HttpResponse:
    """Ask on GET, do it on POST."""
    obj: IdempotencyKey | None = model_admin.get_object(request, unquote(object_id))
    if not (request.user.has_perm(PERMISSION) and model_admin.has_view_permission(request, obj)):
        raise PermissionDenied
    if obj is None:
        return model_admin._get_obj_does_not_exist_redirect(  # type: ignore[no-any-return]
            request, model_admin.opts, object_id
        )
    names = doubts(obj)
    back = reverse("admin:django_idempotency_idempotencykey_change", args=[obj.pk])
    if not _is_resolvable(obj) or (decision.needs_doubt and not names):
        model_admin.message_user(request, _("There is nothing to decide about this key now."), messages.ERROR)
        return HttpResponseRedirect(back)
    if request.method == "POST":
        form = decision.form(request.POST, names=names)
        if form.is_valid():
            _carry_out(model_admin, request, obj, form)
            return HttpResponseRedirect(back)
    else:
        form = decision.form(initial={"attempt": obj.attempt}, names=names)
    return _confirmation(model_admin, request, obj, decision, form)


def _carry_out(model_admin: Any, request: HttpRequest, obj: IdempotencyKey, form: ReleaseForm) -> None:
    """The decision and its entry in the admin's log, or neither."""
    using = obj._state.db
    try:
        with transaction.atomic(using=using):
            done = form.decide(obj, attempt=form.cleaned_data["attempt"], using=using)
            model_admin.log_change(request, obj, done)
    except NotResolvable:
        text = _("Nothing was changed: somebody has worked on this key since you looked. Look again.")
        model_admin.message_user(request, text, messages.ERROR)
    else:
        model_admin.message_user(request, done, messages.SUCCESS)


def _confirmation(
    model_admin: Any, request: HttpRequest, obj: IdempotencyKey, decision: Decision, form: ReleaseForm
) -> HttpResponse:
    context = {
        **model_admin.admin_site.each_context(request),
        "title": decision.label,
        "opts": model_admin.opts,
        "media": model_admin.media + form.media,
        "object": obj,
        "decision": decision,
        "doubts": doubts(obj),
        "form": form,
    }
    return TemplateResponse(request, "admin/django_idempotency/idempotencykey/decision.html", context)
