"""The list of keys as a spreadsheet: write its cells, and read the decisions that a person has entered.

Spreadsheet programs may alter a file when they save it: `read` accepts a different separator and an added byte order
mark. If anything else seems to have been altered, the whole file is rejected, because a rounded number could identify a
different key or a different charge.

# Note [Formulas]
Clients choose keys and resources, and a spreadsheet runs each cell that begins with `=` or a similar character. A cell
may also begin in the middle of a text. Depending on its language and settings, a spreadsheet splits lines at
semicolons, tabs or spaces instead of commas, and then ignores the quotation marks. Inside the text, `cell` therefore
adds an apostrophe wherever such a cell could begin. If apostrophes are already there, `cell` adds one more, and `read`
gets the original text back by removing one.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ..engine.protocol.error_text import without_controls
from .entered import entered_answer, json_value, result_of
from .resolution import CLOSING, close_with, record_outcome, release_for_retry

TO_FILL = ("decision", "step", "result")
"""These columns come first, because spreadsheets cut off empty cells at the end of a line."""
READ = (*TO_FILL, "id", "reference", "version")
FORMULA = "('*[-=+@＝＋－＠])"
"""The beginning of a formula, and the apostrophes before it. East Asian spreadsheets accept wide characters, too."""
BEGINS = r"""(^|[\s,;|"])"""
"""Where a spreadsheet may begin a cell: see Note [Formulas]."""
ROUNDED = re.compile(r"\s*-?([\d.,]+[eE][-+]?\d+|(\d[.,]?){16,})\s*")
"""Spreadsheets keep only 15 digits of a number."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A row in which a person has entered a decision.

    Attributes:
        pk: the id of the key's row.
        seen: the key's reference and version, as exported. See `lookups.version_of`.
        step: the step whose result is recorded, or "".
        what: the decision as it was typed.
        action: the decision's name, as `Facts.needs_word` expects it.
        settle, args: a function from `maintenance.resolution`, and its arguments after the key.
    """

    pk: int
    seen: tuple[str, str]
    step: str
    what: str
    action: str
    settle: Callable[..., None]
    args: tuple[Any, ...]


def cell(value: Any) -> str:
    """Escape everything in a value that a spreadsheet could evaluate as a formula. See Note [Formulas]."""
    return re.sub(BEGINS + FORMULA, r"\1'\2", without_controls(str(value)))


def text_of(cell: str) -> str:
    """Return the text that `cell` has escaped."""
    return re.sub(f"{BEGINS}'{FORMULA}", r"\1\2", cell)


def read(path: str, using: str) -> list[Filled]:
    """Read the rows of an exported list in which a person has entered a decision about keys in the database `using`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not such a list. The message names the line and says what to type.
    """
    text = Path(path).read_bytes().decode("utf-8-sig", "replace")
    separator = max(",;\t", key=text.partition("\n")[0].count)
    rows, filled = csv.DictReader(StringIO(text, newline=""), delimiter=separator, strict=True), dict[int, Filled]()
    recorded: dict[tuple[str, str], int] = {}
    try:
        if any([*(rows.fieldnames or ())].count(name) != 1 for name in READ):
            raise ValueError(f"the heading must name each of these columns once, as CSV in UTF-8: {', '.join(READ)}")
        for cells in rows:
            if any(cells[name] for name in TO_FILL):
                row = _filled(cells, using)
                if row.pk in filled:
                    raise ValueError("a line above decides about this key, too. Decide once, and export the list again")
                filled[row.pk] = row
                if row.step and isinstance(value := json_value(cells["result"]), dict | str):
                    # If a result were copied down a column by mistake, one customer's charge would be recorded for
                    # others' orders.
                    above = recorded.setdefault((row.step, json.dumps(value, sort_keys=True)), rows.reader.line_num)
                    if above != rows.reader.line_num:
                        raise ValueError(
                            f"line {above} records the same result of {row.step!r}, but each call has one of its own. "
                            "If it is right, decide about this key in the admin"
                        )
    except (csv.Error, ValueError) as error:
        said = str(error).removesuffix(".")
        raise ValueError(f"Nothing was decided. {path}, line {rows.reader.line_num}: {said}.") from error
    return [*filled.values()]


def _filled(cells: dict[str, str], using: str) -> Filled:
    if None in cells or None in map(cells.get, READ):
        raise ValueError("its cells do not match the heading. Export the list again")
    # A person types the results. They are never exported, so there is nothing to unescape.
    typed = {name: cells[name] if name == "result" else text_of(cells[name]) for name in READ}
    try:
        reference = re.fullmatch("[0-9a-f]{16}", typed["reference"])[0]  # type: ignore[index]
        pk, seen = int(typed["id"]), (reference, re.fullmatch("v[0-9a-f]{15}", typed["version"])[0])  # type: ignore[index]
    except (TypeError, ValueError):
        raise ValueError("id, reference or version is damaged. Import them as text") from None
    chosen, step, result = typed["decision"].strip().lower(), typed["step"], typed["result"]
    if "\ufffd" in step + result:
        raise ValueError("it is not UTF-8. Save the list as CSV UTF-8")
    if ROUNDED.fullmatch(result):
        raise ValueError(f"a spreadsheet may have rounded {result!r}. Decide about this key in the admin")
    made: tuple[str, Callable[..., None], tuple[Any, ...]]
    if chosen == "release" and not (step or result):
        made = "release", release_for_retry, ()
    elif chosen == "record" and step and result:
        made = "record", record_outcome, (step, result_of(json_value(result), using=using))
    elif re.fullmatch("[0-9]{3}", chosen) and int(chosen) in CLOSING and not step:
        made = "answer", close_with, (entered_answer(int(chosen), result),)
    else:
        raise ValueError(
            "write release, record (with step and result), or a status from "
            f"{CLOSING[0]} to {CLOSING[-1]} (with its body as result)"
        )
    return Filled(pk, seen, step, ", ".join(filter(None, (chosen, step, result))), *made)
