"""What a developer sees when a protected view raises."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import django_idempotency
from django_idempotency import idempotent

HOME = str(Path(django_idempotency.__file__).parent)


@pytest.mark.django_db(transaction=True)
def test_an_exception_of_a_plain_view_passes_at_most_four_frames_of_ours(rf: RequestFactory) -> None:
    """The traceback stays readable: each frame appears once, and the view's own frame is the last."""

    @idempotent
    def view(request: HttpRequest) -> HttpResponse:
        raise ValueError("out of stock")

    request = rf.post("/orders/", headers={"Idempotency-Key": "a-key"})
    with pytest.raises(ValueError, match="out of stock") as raised:
        view(request)

    frames = traceback.extract_tb(raised.value.__traceback__)
    ours = [(frame.filename, frame.name) for frame in frames if frame.filename.startswith(HOME)]
    assert len(ours) <= 4
    assert len(set(ours)) == len(ours)
    assert frames[-1].name == "view"
