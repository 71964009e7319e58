"""Which exceptions were raised into the code, by a limit, and which were its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from functools import partial
from typing import Any

import pytest

from django_idempotency.limits import is_limit, limit_in
from tests.strikes import Limit, strike, striking


class Handler:
    def __call__(self, number: int, frame: Any) -> None:
        raise TimeoutError

    def method(self, number: int, frame: Any) -> None:
        raise TimeoutError


def raised(*_: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (any)
        strike()
    return caught.value


@pytest.mark.parametrize("handler", [Handler(), Handler().method, partial(Handler.method, Handler())])
def test_what_a_handler_raises_is_a_limit_whatever_its_class(handler: Any) -> None:
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        assert is_limit(raised())
    finally:
        signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), MemoryError()])
def test_what_no_code_raises_as_an_error_is_a_limit(error: BaseException) -> None:
    assert is_limit(error)


@pytest.mark.parametrize("error", [TimeoutError(), Limit(), RecursionError()])
def test_an_error_of_the_code_is_none(error: Exception) -> None:
    """Of the same classes."""
    with pytest.raises(type(error)) as caught:
        raise error
    assert not is_limit(caught.value)


def of_a_driver(handled: BaseException | None, *, caught: bool = True) -> BaseException | None:
    """The limit in an error like redis-py's, which catches each TimeoutError, raised below a handler or not."""
    try:
        try:
            strike() if caught else None
            raise TimeoutError
        except TimeoutError:
            raise ConnectionError from None
    except ConnectionError as error:
        return limit_in(error, handled)


def test_a_limit_is_found_below_the_error_that_a_driver_made_of_it() -> None:
    with striking(TimeoutError):
        assert isinstance(of_a_driver(None), TimeoutError)
        assert of_a_driver(None, caught=False) is None


def test_a_limit_that_is_being_handled_is_not_found_again() -> None:
    """What the work does about it may fail in its own right."""
    with striking():
        try:
            strike()
        except Limit:
            assert of_a_driver(sys.exception(), caught=False) is None
            assert isinstance(of_a_driver(None, caught=False), Limit)


def test_a_loop_of_causes_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert limit_in(first, None) is None
