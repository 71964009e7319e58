from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from tests.at_hand import databases

if os.environ.get("MYSQL_DRIVER") == "pymysql":
    import pymysql

    pymysql.install_as_MySQLdb()

if os.environ.get("POSTGRESQL_DRIVER") == "psycopg2":
    sys.modules["psycopg"] = None  # type: ignore[assignment]  # Django takes psycopg 3 where that is installed

SECRET_KEY = "only for tests"
DATABASES = databases()
REST_FRAMEWORK_INSTALLED = find_spec("rest_framework") is not None
SPECTACULAR_INSTALLED = find_spec("drf_spectacular") is not None
INSTALLED_APPS = [
    "django_idempotency",  # before the admin, whose index page then counts the keys that need attention
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    *(["rest_framework", "rest_framework.authtoken"] if REST_FRAMEWORK_INSTALLED else []),
    *(["drf_spectacular"] if SPECTACULAR_INSTALLED else []),
    "tests.shopapp",
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
if SPECTACULAR_INSTALLED:
    REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "django_idempotency.rest_framework.schema.AutoSchema"}
ROOT_URLCONF = "tests.urls"
ALLOWED_HOSTS = ["*"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True
