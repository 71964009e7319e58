"""The decisions that a person can make in the admin, each with its form, explanation and button."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from django import forms
from django.contrib.auth import get_permission_codename
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..engine.stores.states import ATTENTION, HALF_DONE, IN_DOUBT
from ..maintenance.earlier import shape_of, unlike
from ..maintenance.entered import answer_of, json_value, result_of
from ..maintenance.facts import Facts
from ..maintenance.lookups import version_of
from ..maintenance.recovery import can_be_asked
from ..maintenance.resolution import CLOSING, close_with, record_outcome, release_for_retry
from ..models import IdempotencyKey
from .links import Shown
from .texts import as_utf8, cut, encodable

CONTENT_TYPES = ("application/json", "application/problem+json", "text/plain; charset=utf-8")
"""The media types that an entered response can have. A browser runs none of them as code."""
LONG_TEXT = {"rows": 10, "class": "vLargeTextField", "spellcheck": "false"}
Settlement = tuple[Callable[..., None], tuple[Any, ...], str]
"""A function from `maintenance.resolution`, its arguments after the key, and a sentence that says what was done."""


def version(row: IdempotencyKey) -> str:
    """Return a string that identifies the key and what a person has seen of it."""
    return f"{row.pk}:{version_of(row)}"


def steps_of(keys: Sequence[Shown]) -> list[str]:
    """The steps for which a person may record a result."""
    return list(dict.fromkeys(name for key in keys for name in key.facts.recordable))


class DecisionForm(forms.Form):
    """The form in which an operator makes a decision about one or more keys and gives a reason for it.

    Attributes:
        name: the last part of the page's address, and the action in the audit trail.
        label: the text of the button.
        explanation: what will happen.
        warning: what may go wrong while a step is in doubt.
        word: what the operator must confirm if `Facts.needs_word` says so.
        previewed_fields: the fields that the preview shows; without any, there is no preview.

    Args:
        keys: the keys as the operator sees them.
        earlier: the latest results of each step, by the step's name, as `earlier_results` returns them.
        user: the person who decides.
    """

    name: str
    label: Any
    explanation: Any
    warning: Any = ""
    word: Any = ""
    do_not_call_in_templates = True
    previewed_fields: tuple[str, ...] = ()

    seen = forms.CharField(widget=forms.HiddenInput)
    confirmed = forms.BooleanField(error_messages={"required": _("Look first, then confirm.")})
    reason = forms.CharField(
        label=_("reason or ticket"),
        max_length=1000,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=_("Stored with the key and shown on its page. Leave out secrets and card numbers."),
    )
    # After a preview, the `digest` of what was shown.
    previewed = forms.CharField(widget=forms.HiddenInput, required=False)

    field_order = ("step", "result", "readable", "status", "content_type", "body", "confirmed", "reason")

    def __init__(self, data: Any, *, keys: Sequence[Shown], earlier: Mapping[str, list[str]], user: Any) -> None:
        super().__init__(data)
        self.about, self.earlier, self.user = [version(key.facts.row) for key in keys], earlier, user
        self.database, self.secrets = str(keys[0].facts.row._state.db), keys[0].secrets
        self.red = any(self.harms(key.facts) for key in keys)
        self.fields["seen"].initial = " ".join(self.about)
        self.fields["confirmed"].label = self.word
        if not any(key.facts.needs_word(self.name) for key in keys):
            del self.fields["confirmed"]
        if "step" in self.fields:
            self.fields["step"].choices = [(name, name) for name in steps_of(keys)]  # type: ignore[attr-defined]

    @classmethod
    def fits(cls, facts: Facts) -> bool:
        """Whether this decision is possible in the key's current state."""
        return facts.idle

    @classmethod
    def harms(cls, facts: Facts) -> bool:
        """Whether this decision can have worse consequences than an error message. If so, its button is red."""
        return False

    @property
    def was_previewed(self) -> bool:
        """Whether this valid form was submitted exactly as it was previewed, or needs no preview."""
        return not self.previewed_fields or self.cleaned_data["previewed"] == self.digest

    @property
    def digest(self) -> str:
        """A hash of what was entered and of the keys' states. The preview sends it along in a hidden field."""
        entered = [*self.about, *(str(self.cleaned_data[name]) for name in self.previewed_fields)]
        return sha256(json.dumps(entered).encode()).hexdigest()[:16]

    def decision(self) -> Settlement:
        raise NotImplementedError


class ReleaseForm(DecisionForm):
    """Releases a key, so that the next retry runs. This can charge the customer twice if a charge is in doubt."""

    name, label = "release", _("Release for retry")
    explanation: Any = _(
        "The client's next retry runs at once. Steps that have a result are not repeated; calls in doubt are made "
        "again, with the same derived key."
    )
    warning: Any = _(
        "This may charge the customer twice: what is in doubt may have happened, and then happens again. Release the "
        "key only if it did not happen, or if the called service honours the derived key."
    )
    word = _("I checked the called service's books: what is in doubt did not happen.")

    def __init__(self, data: Any, *, keys: Sequence[Shown], **words: Any) -> None:
        super().__init__(data, keys=keys, **words)
        if unkeyed := list(dict.fromkeys(name for key in keys for name in key.facts.unkeyed)):
            self.explanation = gettext(
                "The client's next retry runs at once. Steps that have a result are not repeated; calls in doubt are "
                "made again. The called service may not recognize a repeated call of %(names)s: the view had not asked "
                "for a derived key before it, or asked so long ago that the key may be forgotten by now."
            ) % {"names": ", ".join(unkeyed)}
            self.warning = gettext(
                "This may charge the customer twice: what is in doubt may have happened, and then happens again. "
                "Release the key only if it did not happen."
            )

    @classmethod
    def fits(cls, facts: Facts) -> bool:
        """A half-done key continues without a release. An undecryptable key would fail even after a release."""
        return facts.idle and facts.state is not HALF_DONE and not facts.unreadable

    @classmethod
    def harms(cls, facts: Facts) -> bool:
        return facts.state is IN_DOUBT

    def decision(self) -> Settlement:
        return release_for_retry, (), gettext("Released for retry.")


class RecordForm(DecisionForm):
    """Records a step's result."""

    name, label = "record", _("Record an outcome")
    explanation = _(
        "The result that you enter is stored for the call, which is not made again: the client's next retry continues "
        "with the step after it. You can correct the result until the key is completed."
    )
    previewed_fields = ("step", "result")

    step = forms.ChoiceField(label=_("call"))
    result = forms.CharField(
        label=_("result"),
        widget=forms.Textarea(attrs=LONG_TEXT),
        help_text=_("What the call returned, as JSON. Look it up in the called service's records."),
    )
    # This is shown only for a result that differs from all earlier ones.
    readable = forms.BooleanField(label=_("The view can read this result, too."), required=False)

    def __init__(self, data: Any, **words: Any) -> None:
        super().__init__(data, **words)
        if data is None:
            del self.fields["readable"]

    def clean(self) -> None:
        super().clean()
        said = self._read() if "result" in self.cleaned_data else ""
        if not said:
            del self.fields["readable"]
        elif not self.cleaned_data["readable"]:
            text = _("Look again: %(said)s. A view that expects another result may take a payment for a refusal.")
            self.add_error("readable", encodable(text % {"said": said}))

    def _read(self) -> str:
        """Read the result. Return how it differs from all earlier results, or an empty string if it doesn't."""
        data = self.cleaned_data
        earlier = self.earlier.get(data.get("step", ""), [])
        wrapped = any(shape_of(result) == ("object", "value") for result in earlier)
        try:
            value = data["result"] = json_value(data["result"])
            data["value"] = result_of(value, using=self.database, envelope=wrapped, allowed=self._may_see)
        except ValueError as error:
            self.add_error("result", encodable(str(error)))
            return ""
        return unlike(data["value"], earlier, names=self.secrets)

    @classmethod
    def fits(cls, facts: Facts) -> bool:
        return facts.idle and bool(facts.recordable)

    @property
    def preview(self) -> str:
        return cut(as_utf8(json.dumps(self.cleaned_data["result"], ensure_ascii=False)))

    def decision(self) -> Settlement:
        step = self.cleaned_data["step"]
        done = gettext("Recorded the outcome of the call “%(step)s”.") % {"step": step}
        return record_outcome, (step, self.cleaned_data["value"]), done

    def _may_see(self, model: Any) -> bool:
        """Whether the operator may see rows of this model. Without this check, the error messages would tell anyone
        which rows exist.
        """
        return bool(self.user.has_perm(f"{model._meta.app_label}.{get_permission_codename('view', model._meta)}"))


class AnswerForm(DecisionForm):
    """Stores a key's final response."""

    name, label = "answer", _("Close with a response")
    explanation = _(
        "This cannot be undone: the key is completed, nothing runs again, and every retry gets the response that you "
        "enter."
    )
    warning = _(
        "Something is in doubt, and after this response nobody is reminded of it. Settle it with the called service "
        "first, and say in the reason what you found."
    )
    previewed_fields = ("status", "content_type", "body")
    word = _("The calls are settled: what they paid for exists, or no money is kept.")

    status = forms.IntegerField(
        label=_("status code"),
        min_value=CLOSING[0],
        max_value=CLOSING[-1],
        help_text=_("What the client will understand: 201 if you did the work by hand, otherwise 409 or 410."),
    )
    content_type = forms.ChoiceField(label=_("content type"), choices=[(type_, type_) for type_ in CONTENT_TYPES])
    body = forms.CharField(label=_("body"), required=False, strip=False, widget=forms.Textarea(attrs=LONG_TEXT))

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
        return f"HTTP {data['status']}\nContent-Type: {data['content_type']}\n\n{encodable(data['body'])}"

    def decision(self) -> Settlement:
        data = self.cleaned_data
        done = gettext("Closed with status %(status)s.") % {"status": data["status"]}
        return close_with, (data["answer"],), done


class ReconcileForm(DecisionForm):
    """Lets the project's `reconcile` decide, without waiting for the next recovery."""

    name, label = "reconcile", _("Ask reconcile now")
    explanation = _(
        "Calls your reconcile function for this key now, as recover_idempotency_keys does. If it returns a response, "
        "retries get that response; if it returns nothing, the key keeps waiting."
    )
    warning = _("A slow worker can still make its call after reconcile has looked: first make sure that it is dead.")

    @classmethod
    def fits(cls, facts: Facts) -> bool:
        claimable = facts.state in ATTENTION and not (facts.unleased or facts.write_in_doubt or facts.unreadable)
        return claimable and can_be_asked(facts.row.operation)


DECISIONS: tuple[type[DecisionForm], ...] = (ReconcileForm, RecordForm, AnswerForm, ReleaseForm)
"""The decisions in the order of their buttons, with the safe ones first."""
