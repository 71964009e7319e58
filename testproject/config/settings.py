from __future__ import annotations

from pathlib import Path

import environ

from config.database import database

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()
environ.Env.read_env(BASE_DIR / ".env")

SECRET_KEY = env("SECRET_KEY", default="the shop is a demo, do not deploy it")
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1"])
DATABASES = {"default": database()}
INSTALLED_APPS = [
    "django_idempotency",  # before the admin, whose index page then counts the keys that need attention
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "shop.schema.ShopSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "The shop",
    "VERSION": "1",
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "shop.schema.add_plain_view"],
}
DEMO = env.bool("DEMO", default=False)
"""Whether a request header can pause a view. Only `manage.py demo` sets it."""
WEBHOOK_SECRET = env("WEBHOOK_SECRET", default="whsec_dGhlIHNob3AgaXMgYSBkZW1v")
GATEWAY_URL = env("GATEWAY_URL", default="http://127.0.0.1:8001")
OLD_GATEWAY_URL = env("OLD_GATEWAY_URL", default="http://127.0.0.1:8002")
"""A second gateway, which ignores idempotency keys."""
GATEWAY_TIMEOUT = env.float("GATEWAY_TIMEOUT", default=10)
"""Seconds."""
REPORT_LEASE = env.float("REPORT_LEASE", default=30)
"""Seconds. The view of a report only writes a row and starts a task."""
PAYMENT_LEASE = env.float("PAYMENT_LEASE", default=120)
"""Seconds. Well above the gateway's timeout, so that the lease expires only if the worker died."""
