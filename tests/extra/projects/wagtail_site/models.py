from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.utils.decorators import method_decorator
from modelcluster.fields import ParentalKey
from wagtail.contrib.forms.models import AbstractForm, AbstractFormField

from django_idempotency import idempotent
from django_idempotency.keys import from_form_field


class FormField(AbstractFormField):
    page = ParentalKey("EnrolmentPage", on_delete=models.CASCADE, related_name="form_fields")


class EnrolmentPage(AbstractForm):
    """Wagtail checks who may see a page before it calls `serve`. So the decorator stands on `serve`."""

    if settings.PROTECTED:

        @method_decorator(idempotent(key=from_form_field(), wait=30))
        def serve(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            return super().serve(request, *args, **kwargs)
