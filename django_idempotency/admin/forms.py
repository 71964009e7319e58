"""What an operator enters for each decision. `decide` of each form carries the decision out, and says what was done."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.execution.values import encode_step
from ..engine.protocol.snapshots import Snapshot
from ..exceptions import ResultNotStorable
from ..maintenance.entered import is_envelope, json_value, row_of
from ..maintenance.resolution import close_with, record_outcome, release_for_retry
from .bodies import as_utf8, encodable, readable_json
from .timeline import value_text

CONTENT_TYPES = (
    ("application/json", "JSON"),
    ("application/problem+json", "JSON (RFC 9457)"),
    ("text/plain; charset=utf-8", gettext_lazy("plain text")),
)
"""Nothing that a browser runs: the answer goes out in the name of the site."""
AS_IT_IS = ("X-Content-Type-Options", "nosniff")
"""Browsers take the content type for true, and do not look into the body for HTML."""
Decide = tuple[Callable[..., None], tuple[Any, ...], str]
"""A function of `maintenance.resolution`, what it needs beside the key, and what was done in words."""


class DecisionForm(forms.Form):
    """A decision, and its reason.

    Args:
        attempt: the attempt that the operator sees. None: the form is about several keys.
        looked: whether the operator has to say that the books of the other side were looked into.
    """

    previewed_fields: tuple[str, ...] = ()

    # The decision is refused if a worker has started another attempt since the page was opened.
    attempt = forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=2**31 - 1)
    reason = forms.CharField(
        label=gettext_lazy("reason or ticket"),
        max_length=1000,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy("Kept with the key, and shown on its page. Write no secrets and no card numbers."),
    )
    # What the operator has seen in the preview.
    previewed = forms.CharField(widget=forms.HiddenInput, required=False)

    def __init__(self, *args: Any, attempt: int | None = None, looked: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["attempt"].initial = attempt
        if attempt is None:
            del self.fields["attempt"]
        self.order_fields([*(name for name in self.fields if name not in ("reason", "looked")), "looked", "reason"])

    @property
    def was_previewed(self) -> bool:
        """Whether the operator has seen exactly what this form would do. Ask a valid form only."""
        return not self.previewed_fields or self.cleaned_data["previewed"] == self.seen

    @property
    def seen(self) -> str:
        """What names the decision that a preview has shown."""
        entered = [str(self.cleaned_data[name]) for name in self.previewed_fields]
        return sha256(json.dumps(entered).encode()).hexdigest()[:16]

    def decision(self) -> Decide:
        raise NotImplementedError

    def warnings(self) -> list[str]:
        """What is odd about what was entered. Ask a valid form only."""
        return []


class ReleaseForm(DecisionForm):
    """Release, which may charge twice."""

    looked = forms.BooleanField(
        label=gettext_lazy("I looked in the other side's books: what is in doubt did not happen."),
        error_messages={"required": gettext_lazy("Look first. Under “hold” no call may be made twice.")},
    )

    def __init__(self, *args: Any, looked: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, looked=looked, **kwargs)
        if not looked:
            del self.fields["looked"]

    def decision(self) -> Decide:
        return release_for_retry, (), _("Released for retry.")


class RecordForm(DecisionForm):
    """The result of a step.

    Args:
        steps: the names that may be chosen.
        examples: what is kept of a past result, by the name of the step.
    """

    previewed_fields = ("step", "result")

    step = forms.ChoiceField(label=gettext_lazy("call"))
    result = forms.CharField(
        label=gettext_lazy("result"),
        widget=forms.Textarea(attrs={"rows": 10, "class": "vLargeTextField", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "The return value of the call, as JSON. Look it up in the records of the called service."
        ),
    )

    def __init__(self, *args: Any, steps: list[str], examples: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["step"].choices = [(name, name) for name in steps]  # type: ignore[attr-defined]
        self._examples = examples

    def clean_result(self) -> Any:
        return parsed(self.cleaned_data["result"])

    def clean(self) -> None:
        super().clean()
        if "result" not in self.cleaned_data:
            return
        value = self.cleaned_data["result"]
        try:
            if is_envelope(value) and not self._past_is_envelope():
                raise ValidationError(
                    _("This is the envelope in which a result is kept. Enter only what stands inside “value”.")
                )
            self.cleaned_data["value"] = _row_of(value)
            encode_step(self.cleaned_data["value"])
        except (ValidationError, ResultNotStorable) as error:
            self.add_error("result", str(error) if isinstance(error, ResultNotStorable) else error)

    def warnings(self) -> list[str]:
        past = self._past()
        if past is None:
            return []
        value = self.cleaned_data["result"]
        if type(past) is not type(value):
            return [_("The example is of another type. The view may fail with this result.")]
        if isinstance(past, dict) and (missing := [str(name) for name in past if name not in value]):
            return [_("The example also has these names: %(names)s.") % {"names": encodable(", ".join(missing))}]
        return []

    @property
    def preview(self) -> str:
        return readable_json(as_utf8(json.dumps(self.cleaned_data["result"], ensure_ascii=False)))

    def decision(self) -> Decide:
        step = self.cleaned_data["step"]
        done = _("Recorded the outcome of the call “%(step)s”.") % {"step": step}
        return record_outcome, (step, self.cleaned_data["value"]), done

    def _past(self) -> Any:
        kept = self._examples.get(self.cleaned_data.get("step", ""))
        return None if kept is None else json.loads(value_text(kept))

    def _past_is_envelope(self) -> bool:
        return is_envelope(self._past())


class AnswerForm(DecisionForm):
    """The final response of a key."""

    previewed_fields = ("status", "content_type", "body")

    status = forms.IntegerField(
        label=gettext_lazy("status code"),
        min_value=200,
        max_value=499,
        help_text=gettext_lazy("What the client understands: 201 if the work was done by hand, 409 or 410 if not."),
    )
    content_type = forms.ChoiceField(label=gettext_lazy("content type"), choices=CONTENT_TYPES)
    body = forms.CharField(
        label=gettext_lazy("body"),
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 10, "class": "vLargeTextField", "spellcheck": "false"}),
    )

    def clean(self) -> None:
        super().clean()
        body: str = self.cleaned_data.get("body", "")
        # An empty body, such as that of a 204, is no JSON and needs none.
        if body and self.cleaned_data.get("content_type", "").endswith("json"):
            try:
                parsed(body)
            except ValidationError as error:
                self.add_error("body", error)

    @property
    def preview(self) -> str:
        data = self.cleaned_data
        return f"HTTP {data['status']}\nContent-Type: {data['content_type']}\n\n{data['body']}"

    def decision(self) -> Decide:
        data = self.cleaned_data
        headers = (("Content-Type", data["content_type"]), AS_IT_IS)
        snapshot = Snapshot(status_code=data["status"], headers=headers, body=data["body"].encode())
        return close_with, (snapshot,), _("Answered by hand with status %(status)s.") % {"status": data["status"]}


def parsed(text: str) -> Any:
    """Return the value of a JSON text. Raises `ValidationError`."""
    try:
        return json_value(text)
    except ValueError as error:
        raise ValidationError(_("This is not JSON: %(error)s.") % {"error": error}) from error


def _row_of(value: Any) -> Any:
    try:
        return row_of(value)
    except LookupError as error:
        raise ValidationError(
            _("There is no %(model)s with the primary key %(pk)s.")
            % {"model": value["model"], "pk": encodable(str(value["pk"]))}
        ) from error
