"""The event "error": nothing runs, because what is stored cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency import run_once
from django_idempotency.exceptions import NotDecryptable
from tests.at_rest import NEW, OLD
from tests.heard import heard
from tests.leases import Broken, breaks

pytestmark = pytest.mark.django_db(transaction=True)


def once(work: Any, **options: Any) -> Any:
    return run_once(work, scope="s", key="k", operation="o", **options)


@pytest.mark.parametrize("lease", [None, 60])
def test_a_response_that_cannot_be_decrypted(settings: Any, lease: int | None) -> None:
    """The event names its key."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    once(lambda *operation: 1, lease=lease)
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    with heard() as events, pytest.raises(NotDecryptable):
        once(lambda *operation: 1, lease=lease)
    (event,) = events
    assert (event["event"], event["attempt"], event["using"]) == ("error", None, "default")
    assert (event["reason"], event["identity"].key) == ("django_idempotency.exceptions.NotDecryptable", "k")


def test_a_step_that_cannot_be_decrypted(settings: Any) -> None:
    """Nothing of the attempt has run, so it releases nothing."""
    with heard("error", "released") as events:
        for error, key in ((Broken, OLD), (NotDecryptable, NEW)):
            settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [key]}
            with pytest.raises(error):
                once(lambda operation: breaks(operation.fetch("rate", int)), lease=60)
    assert [event["event"] for event in events] == ["released", "error"]
