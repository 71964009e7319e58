"""Django's own settings for its tests on SQLite, with our runner."""

from test_sqlite import *  # noqa: F403

TEST_RUNNER = "django_runner.Runner"
# The admin puts `csrf_protect` around its views. Without this line, the package would refuse to protect them.
IDEMPOTENCY = {"HARMLESS_DECORATORS": ["django.middleware.csrf.CsrfViewMiddleware"]}
