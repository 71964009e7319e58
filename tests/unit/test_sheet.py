"""`maintenance/sheet.py`: what a spreadsheet makes of a cell."""

from __future__ import annotations

import csv
import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency.engine.protocol.error_text import without_controls
from django_idempotency.maintenance.sheet import cell, text_of

texts = st.lists(st.sampled_from([*"=+-@＝＋－＠,;|\"' \ta", "=1+41", "'"])).map("".join) | st.text()
SEPARATORS = (",", ";", "\t", "|", " ", ",;", ",;\t| ")


@given(separators=st.sampled_from(SEPARATORS), values=st.lists(texts, min_size=1))
def test_no_cell_is_a_formula_wherever_the_file_is_split(separators: str, values: list[str]) -> None:
    """With the quotation marks obeyed, as separators allow, or taken as text."""
    is_never_a_formula(separators, values)


@pytest.mark.parametrize("separators", SEPARATORS)
@pytest.mark.parametrize("value", ["a;=1+41;", '"=1+41', "'=1+41"])
def test_what_was_a_formula_once_is_none(separators: str, value: str) -> None:
    """A separator before it, a quotation mark, or an apostrophe."""
    is_never_a_formula(separators, [value])


def is_never_a_formula(separators: str, values: list[str]) -> None:
    file = StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL).writerow(map(cell, values))
    split = re.split(f"[{separators}]", file.getvalue())
    if len(separators) == 1:
        split += next(csv.reader([file.getvalue()], delimiter=separators))
    assert [part for part in split if re.match('[\\s"]*[-=+@＝＋－＠]', part)] == []


@given(text=texts)
def test_what_was_escaped_is_read_back_unchanged(text: str) -> None:
    """Apostrophes before a formula included: two steps never become one."""
    assert text_of(cell(text)) == without_controls(text)
