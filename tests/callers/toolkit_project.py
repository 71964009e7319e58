"""A project with django-oauth-toolkit that real servers serve. As a program, it fills its database with two clients."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import django
from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.decorators import login_required
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

BACKENDS = ["django.contrib.auth.backends.ModelBackend", "oauth2_provider.backends.OAuth2Backend"]
settings.configure(
    SECRET_KEY="tests" * 12,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["TOOLKIT_DATABASE"],
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    },
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "django.contrib.sessions",
        "oauth2_provider",
        "django_idempotency",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "oauth2_provider.middleware.OAuth2TokenMiddleware",
    ],
    AUTHENTICATION_BACKENDS=BACKENDS,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    MIGRATION_MODULES=dict.fromkeys(("auth", "contenttypes", "sessions", "oauth2_provider")),  # their tables only
    USE_TZ=True,
)
django.setup()

from django_idempotency import idempotent  # noqa: E402 (after its settings)


@csrf_exempt
@login_required
@idempotent
def pay(request: Any) -> HttpResponse:
    return HttpResponse(request.headers.get("Authorization", "the session"), status=201)


urlpatterns = [path("read", lambda request: HttpResponse()), path("pay", pay)]
wsgi, asgi = get_wsgi_application(), get_asgi_application()


def fill() -> str:
    """Make a user with a token of each of two clients; return the key of the user's session."""
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore
    from oauth2_provider.models import AccessToken, Application

    call_command("migrate", run_syncdb=True, verbosity=0)
    ada = User.objects.create_user("ada")
    for name in "AB":
        client = Application.objects.create(authorization_grant_type="authorization-code")
        later = timezone.now() + timedelta(hours=1)
        AccessToken.objects.create(token=f"token-{name}", application=client, user=ada, expires=later)
    request = HttpRequest()
    request.session = SessionStore()
    login(request, ada, backend=BACKENDS[0])
    request.session.save()
    return str(request.session.session_key)


if __name__ == "__main__":
    print(fill())
