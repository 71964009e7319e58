"""django.tasks: a task that is delivered twice."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from django.test import override_settings

from tests.shopapp.models import Order


@pytest.mark.skipif(find_spec("django.tasks") is None, reason="this Django has no tasks")
@pytest.mark.django_db
def test_a_task_that_is_delivered_twice() -> None:
    """The second run returns the first one's result."""
    backend = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    with override_settings(TASKS=backend):
        from tests.jobs.tasks import place_order

        results = [place_order.enqueue("order") for _ in range(2)]
    assert results[0].return_value == results[1].return_value == Order.objects.get().pk
