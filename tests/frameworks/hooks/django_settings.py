"""Django's own settings for its tests on SQLite, with our runner."""

from test_sqlite import *  # noqa: F403

TEST_RUNNER = "django_runner.Runner"
