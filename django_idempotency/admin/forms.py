"""The decisions: a button on the page of a key, a page that explains the consequences, and what an operator enters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from django import forms
from django.contrib.auth import get_permission_codename
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..maintenance.entered import answer_of, is_envelope, json_value, result_of
from ..maintenance.facts import Facts
from ..maintenance.resolution import close_with, record_outcome, release_for_retry
from .texts import as_utf8, encodable, readable_json

CONTENT_TYPES = (
    ("application/json", "JSON"),
    ("application/problem+json", "JSON (RFC 9457)"),
    ("text/plain; charset=utf-8", _("plain text")),
)
"""Nothing that a browser runs: the answer goes out in the name of the site."""
Decide = tuple[Callable[..., None], tuple[Any, ...], str]
"""A function of `maintenance.resolution`, what it needs beside the key, and what was done in words."""


class DecisionForm(forms.Form):
    """A decision about some keys, and its reason.

    Attributes:
        name: the last part of the address, and the action in the trail of decisions.
        label: of the button.
        explanation: what will happen.
        warning: what may go wrong while something is in doubt.
        harmful: whether that is worse than an error. Such a button is red.
        word: what the operator has to say before this decision, where it can do harm.
        previewed_fields: what a preview shows. Empty: there is no preview.

    Args:
        about: names these keys as the operator sees them: see `decisions.version`.
        steps: the names of the steps that a result may be recorded for.
        examples: a past result of each step, as its value.
        user: who decides.
        asks: whether the operator has to say what was found outside.
    """

    name: str
    label: Any
    explanation: Any
    warning: Any = ""
    word: Any = ""
    harmful = False
    do_not_call_in_templates = True
    previewed_fields: tuple[str, ...] = ()

    seen = forms.CharField(widget=forms.HiddenInput)
    confirmed = forms.BooleanField(error_messages={"required": _("Look first.")})
    reason = forms.CharField(
        label=_("reason or ticket"),
        max_length=1000,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=_("Kept with the key, and shown on its page. Write no secrets and no card numbers."),
    )
    # What the operator has seen in the preview.
    previewed = forms.CharField(widget=forms.HiddenInput, required=False)

    def __init__(
        self, data: Any, *, about: list[str], steps: list[str], examples: Mapping[str, Any], user: Any, asks: bool
    ) -> None:
        super().__init__(data)
        self.about, self.examples, self.user = about, examples, user
        self.fields["seen"].initial = " ".join(about)
        self.fields["confirmed"].label = self.word
        if not asks:
            del self.fields["confirmed"]
        self.order_fields([*(name for name in self.fields if name not in ("confirmed", "reason")), "confirmed"])
        if "step" in self.fields:
            self.fields["step"].choices = [(name, name) for name in steps]  # type: ignore[attr-defined]

    @classmethod
    def fits(cls, facts: Facts) -> bool:
        """Whether there is something to decide about this key now."""
        return facts.idle

    @property
    def was_previewed(self) -> bool:
        """Whether the operator has seen exactly what this form would do to which keys. Ask a valid form only."""
        return not self.previewed_fields or self.cleaned_data["previewed"] == self.digest

    @property
    def digest(self) -> str:
        """What names the decision that a preview has shown: what was entered, and the keys as they are."""
        entered = [*self.about, *(str(self.cleaned_data[name]) for name in self.previewed_fields)]
        return sha256(json.dumps(entered).encode()).hexdigest()[:16]

    def decision(self) -> Decide:
        raise NotImplementedError

    def warnings(self) -> list[str]:
        """What is odd about what was entered. Ask a valid form only."""
        return []


class ReleaseForm(DecisionForm):
    """Release, which may charge twice."""

    name, label, harmful = "release", _("Release for retry"), True
    explanation = _(
        "The next retry of the client runs at once. Steps that have a result are not run again. Calls in doubt are "
        "made again, with the same derived key."
    )
    warning = _(
        "If what is in doubt did happen, it may happen twice: the customer may be charged twice. Release the key "
        "only if it did not happen, or if the called service honours the derived key."
    )
    word = _("I looked in the other side's books: what is in doubt did not happen.")

    def decision(self) -> Decide:
        return release_for_retry, (), gettext("Released for retry.")


class RecordForm(DecisionForm):
    """The result of a step."""

    name, label = "record", _("Record an outcome")
    explanation = _(
        "The call gets the result that you enter and is not made again. The next retry of the client continues "
        "with the step after the call. You can correct the result until the key is completed."
    )
    previewed_fields = ("step", "result")

    step = forms.ChoiceField(label=_("call"))
    result = forms.CharField(
        label=_("result"),
        widget=forms.Textarea(attrs={"rows": 10, "class": "vLargeTextField", "spellcheck": "false"}),
        help_text=_("The return value of the call, as JSON. Look it up in the records of the called service."),
    )

    def clean(self) -> None:
        super().clean()
        if "result" not in self.cleaned_data:
            return
        try:
            value = self.cleaned_data["result"] = json_value(self.cleaned_data["result"])
            value = result_of(value, envelope=is_envelope(self._past()), allowed=self._may_see)
            self.cleaned_data["value"] = value
        except ValueError as error:
            self.add_error("result", encodable(str(error)))

    @classmethod
    def fits(cls, facts: Facts) -> bool:
        return facts.idle and bool(facts.recordable)

    def warnings(self) -> list[str]:
        past, value = self._past(), self.cleaned_data["result"]
        if past is None:
            return []
        if type(past) is not type(value):
            return [gettext("The example is of another type. The view may fail with this result.")]
        if isinstance(past, dict) and (missing := [str(name) for name in past if name not in value]):
            return [gettext("The example also has these names: %(names)s.") % {"names": encodable(", ".join(missing))}]
        return []

    @property
    def preview(self) -> str:
        return readable_json(as_utf8(json.dumps(self.cleaned_data["result"], ensure_ascii=False)))

    def decision(self) -> Decide:
        step = self.cleaned_data["step"]
        done = gettext("Recorded the outcome of the call “%(step)s”.") % {"step": step}
        return record_outcome, (step, self.cleaned_data["value"]), done

    def _past(self) -> Any:
        return self.examples.get(self.cleaned_data.get("step", ""))

    def _may_see(self, model: Any) -> bool:
        """Without it, the form would tell which primary keys of any model exist."""
        return bool(self.user.has_perm(f"{model._meta.app_label}.{get_permission_codename('view', model._meta)}"))


class AnswerForm(DecisionForm):
    """The final response of a key."""

    name, label = "answer", _("Answer by hand")
    explanation = _(
        "The key becomes completed. Nothing runs again, and every retry of the client gets the response that you "
        "enter. This cannot be undone."
    )
    warning = _(
        "Something is in doubt. After this answer, nothing asks again whether it took effect. Settle it with the "
        "other side first, and say in the reason what you have found."
    )
    previewed_fields = ("status", "content_type", "body")
    word = _("The finished calls are settled: what they paid for exists, or the money went back.")

    status = forms.IntegerField(
        label=_("status code"),
        min_value=200,
        max_value=499,
        help_text=_("What the client understands: 201 if the work was done by hand, 409 or 410 if not."),
    )
    content_type = forms.ChoiceField(label=_("content type"), choices=CONTENT_TYPES)
    body = forms.CharField(
        label=_("body"),
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 10, "class": "vLargeTextField", "spellcheck": "false"}),
    )

    def clean(self) -> None:
        super().clean()
        data = self.cleaned_data
        try:
            if not self.errors:
                data["answer"] = answer_of(data["status"], data["content_type"], data["body"])
        except ValueError as error:
            self.add_error("body", str(error))

    @property
    def preview(self) -> str:
        data = self.cleaned_data
        return f"HTTP {data['status']}\nContent-Type: {data['content_type']}\n\n{data['body']}"

    def decision(self) -> Decide:
        data = self.cleaned_data
        return (
            close_with,
            (data["answer"],),
            gettext("Answered by hand with status %(status)s.") % {"status": data["status"]},
        )


DECISIONS: tuple[type[DecisionForm], ...] = (RecordForm, AnswerForm, ReleaseForm)
"""The safe ones first."""
