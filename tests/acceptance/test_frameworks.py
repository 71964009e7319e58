"""tests.frameworks on a small project: each request is sent again, and its replay compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.__main__ import Framework, check

SHOP = """
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpResponse
from django.test import TestCase
from django.urls import path
from django.views import View


class Order(LoginRequiredMixin, View):
    def post(self, request):
        return HttpResponse(status=201, headers={"Vary": "Accept-Language"})


urlpatterns = [path("login/", LoginView.as_view()), path("orders/", Order.as_view())]


class Shop(TestCase):
    def setUp(self):
        self.user = User.objects.create_user("ada", password="secret")

    def test_login(self):
        answer = self.client.post("/login/", {"username": "ada", "password": "secret"})
        self.assertEqual((answer.status_code, answer["Vary"]), (302, "Cookie"))
        self.assertIn("csrftoken", answer.cookies)

    def test_order(self):
        self.client.force_login(self.user)
        self.assertEqual(self.client.post("/orders/").status_code, 201)

    def test_that_fails_without_the_package_too(self):
        self.fail()
"""
"""A login's answer has `Vary: Cookie` from a decorator of `dispatch`, above the protected handler."""
SETTINGS = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
LOGIN_REDIRECT_URL = "/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ROOT_URLCONF = "shop"
SECRET_KEY = "small"
TEST_RUNNER = "django_runner.Runner"
"""


class SmallProject(Framework):
    def sources(self) -> Path:
        """Nothing is fetched: `folder` is the whole path."""
        return Path()


def run(folder: Path) -> int:
    (folder / "shop.py").write_text(SHOP)
    (folder / "small_settings.py").write_text(SETTINGS)
    command = ("-m", "django", "test", "--settings=small_settings", "--pythonpath=.")
    return check(SmallProject("small", "django", str(folder), command, ("shop",)), "twice", ["shop"])


def test_what_comes_out_of_the_protected_part_is_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What a decorator of `dispatch` adds is not compared. A failure without the package too does not count."""
    assert run(tmp_path) == 0
    told = capfd.readouterr().out
    assert "\n3 tests, 0 skipped, 1 that fail without the package too\n" in told
    assert "\n2 requests under a key, 0 answers that are not final, 2 replays compared\n" in told
