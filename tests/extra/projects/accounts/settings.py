"""dj-rest-auth with django-allauth, and djoser, beside django-oauth-toolkit, as their pages of installation say."""

from __future__ import annotations

from tests.extra.projects.settings import *  # noqa: F403
from tests.extra.projects.settings import INSTALLED_APPS, MIDDLEWARE

INSTALLED_APPS = [
    *INSTALLED_APPS,
    "rest_framework",
    "rest_framework.authtoken",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "dj_rest_auth",
    "dj_rest_auth.registration",
    "djoser",
    "oauth2_provider",
]
MIDDLEWARE = [*MIDDLEWARE, "allauth.account.middleware.AccountMiddleware"]
ROOT_URLCONF = "tests.extra.projects.accounts.urls"
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["oauth2_provider.contrib.rest_framework.OAuth2Authentication"],
}
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "username", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
REST_AUTH = {"OLD_PASSWORD_FIELD_ENABLED": True}
DJOSER = {"TOKEN_MODEL": None}
