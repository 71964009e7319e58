"""Changes beside the steps of a leased view: in development there is a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.leased_urls")]


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


class TestDevelopment:
    @override_settings(DEBUG=True)
    def test_a_change_outside_of_a_step_is_warned_about(self, post: Post) -> None:
        """It would be done again by every retry; reading is fine, and so are the steps."""

        def stray(operation: Any) -> None:
            Order.objects.count()
            with pytest.warns(RuntimeWarning, match=r"changed data outside of operation.write\(\): .INSERT INTO"):
                Order.objects.create()
            with connection.cursor() as cursor, pytest.warns(RuntimeWarning, match="changed data"):
                cursor.executemany("UPDATE shopapp_order SET amount = %s WHERE reference = %s", [(1, "a"), (2, "b")])

        HOOKS["between"] = stray
        assert post("/pay").status_code == 201

    @override_settings(DEBUG=True)
    def test_a_wrapper_of_the_views_own_sees_what_django_says(self, post: Post) -> None:
        """Ours hands on all of it."""
        seen: list[Any] = []

        def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            seen.append((many, context["connection"].alias))
            return execute(sql, params, many, context)

        def read(operation: Any) -> None:
            with connection.execute_wrapper(watch):
                Order.objects.count()

        HOOKS["between"] = read
        post("/pay")
        assert seen == [(False, "default")]

    @override_settings(DEBUG=True)
    def test_what_the_package_writes_is_no_stray_write(self, post: Post) -> None:
        """Warnings are errors in these tests."""

        def between(operation: Any) -> None:
            operation.renew()
            operation.refer_to("order", "59")

        HOOKS["between"] = between
        assert post("/pay").status_code == 201

    def test_without_debug_nobody_looks(self, post: Post) -> None:
        """Warnings are errors in these tests."""
        HOOKS["between"] = lambda operation: Order.objects.create() and None
        assert post("/pay").status_code == 201
