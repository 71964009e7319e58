"""`maintenance/sheet.py`: an exported list, filled in with a spreadsheet and read back by the command."""

from __future__ import annotations

import csv
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import staff
from tests.expired import make_leased
from tests.resolving import get, resolve, rows

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.urls("tests.admin_urls"),
    pytest.mark.usefixtures("keys_of_each_kind"),
]
WORDS = ("--calls-did-not-happen", "--finished-calls-are-settled")
RECORD = {"decision": "Record", "step": "call", "result": '{"id": "ch_1"}'}
RELEASE = {"decision": "release"}
ANSWER = "sold out" + "," * 150
LEFT = "Not all selected keys were decided."
TELLS = "write release, record (with step and result), or a status from 200 to 499 (with its body as result)."
Fill = Callable[..., str]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Export the list in the admin, and write it with what a person has filled in for some keys."""

    def filled(encoding: str = "utf-8", delimiter: str = ",", **made: dict[str, str]) -> str:
        client = staff("view_idempotencykey", "view_response")
        page = client.get(reverse("admin:django_idempotency_idempotencykey_export"), {"o": "1"})
        lines = csv.DictReader(StringIO(page.content.decode()))
        path = tmp_path / "list.csv"
        with path.open("w", encoding=encoding, newline="") as file:
            writer = csv.DictWriter(file, lines.fieldnames or (), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(sorted((line | made.get(line["key"], {}) for line in lines), key=lambda line: line["key"]))
        return f"--from-csv={path}"

    return filled


@pytest.mark.parametrize(("encoding", "delimiter"), [("utf-8", ","), ("utf-8-sig", ";"), ("utf-8", "\t")])
def test_each_row_has_its_own_decision(fill: Fill, encoding: str, delimiter: str) -> None:
    """Kept with the key like any other. A second run with the same file decides nothing."""
    get("doubt").steps.update(key_id=-5)
    IdempotencyKey.objects.filter(key="doubt").update(id=-5)  # which the export writes as '-5
    made = {"doubt": RECORD, "half": {"decision": "410", "result": ANSWER}, "stuck": RELEASE}
    given, before = fill(encoding, delimiter, **made), rows()
    status, text = resolve(given, *WORDS)
    *lines, last = text.splitlines()
    assert [line.split()[0] for line in lines] == ["-5", str(get("half").pk), str(get("stuck").pk)]
    assert [line.rpartition(". ")[2] for line in lines] == [
        'Would decide: record, call, {"id": "ch_1"}.',
        f"Would decide: 410, {ANSWER}.",
        "Would decide: release.",
    ]
    assert (status, last, rows() == before) == (0, "Would decide about 3 keys. Add --apply to do it.", True)
    status, text = resolve(given, *WORDS, "--apply")
    assert (status, text.splitlines()[-1]) == (0, "Decided about 3 keys.")
    trail = [decision for key in made for decision in decisions_of(get(key))]
    assert [(decision.action, decision.detail) for decision in trail] == [
        ("record", "call"),
        ("answer", "410"),
        ("release", ""),
    ]
    assert {(decision.by, decision.reason) for decision in trail} == {("bob", "TICKET-1")}
    assert get("doubt").steps.get(name="call").result == '{"value": {"id": "ch_1"}}'
    assert bytes(get("half").body or b"").decode() == ANSWER
    status, text = resolve(given, *WORDS, "--apply")
    assert text.count(" Skipped: it has changed since the export.\n") == 3
    assert (status, text.endswith(f"\nDecided about 0 keys.\n{LEFT}")) == (3, True)


def test_a_step_is_found_by_the_name_that_was_exported(fill: Fill) -> None:
    """Its name looks like a formula to a spreadsheet that splits at semicolons. A result stays as it was typed."""
    get("doubt").steps.filter(name="call").update(name="a;=1+41")
    given = fill(doubt={"decision": "record", "step": "a;'=1+41", "result": '"a;\'=1"'})
    assert "a;'=1+41" in Path(given[11:]).read_text().partition("record")[2]
    assert resolve(given, *WORDS, "--apply")[0] == 0
    assert get("doubt").steps.get(name="a;=1+41").result == '{"value": "a;\'=1"}'


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (RECORD | {"version": "v" + 15 * "0"}, "it has changed since the export"),
        (RECORD | {"reference": "0123456789abcdef"}, "it has changed since the export"),
        (RECORD | {"id": "99999999999999999999"}, "it is gone"),
        (RECORD | {"step": "write"}, "'write' is neither in doubt nor missing its value"),
        (RELEASE, "ask the called service first, then add --calls-did-not-happen"),
        ({"decision": "201"}, "ask the called service first, then add --finished-calls-are-settled"),
    ],
)
def test_what_is_not_as_it_was_is_left_alone_and_named(fill: Fill, made: dict[str, str], why: str) -> None:
    """With and without --apply. The other rows are decided about."""
    given, before = fill(doubt=made, stuck=RELEASE), get("doubt").updated_at
    for options in ([], ["--apply"]):
        status, text = resolve(given, *options)
        assert (status, text.endswith(LEFT), text.splitlines()[0].endswith(f" Skipped: {why}.")) == (3, True, True)
    assert (get("doubt").updated_at, [made.action for made in decisions_of(get("stuck"))]) == (before, ["release"])


def test_a_decision_that_is_refused_stops_no_other(fill: Fill) -> None:
    """Such as for a trail that was changed in the database."""
    IdempotencyKey.objects.filter(key="doubt").update(decisions="7")
    status, text = resolve(fill(doubt=RECORD, stuck=RELEASE), "--apply")
    assert "the column 'decisions' is not a JSON list" in text.splitlines()[0]
    assert (status, text.endswith(f" Decided: release.\nDecided about 1 key.\n{LEFT}")) == (3, True)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"decision": "refund"}, TELLS),
        ({"decision": "500"}, TELLS),
        ({"step": "call"}, TELLS),
        (RELEASE | {"step": "call"}, TELLS),
        (RECORD | {"step": ""}, TELLS),
        (RECORD | {"result": ""}, TELLS),
        (RECORD | {"result": '{"value": 5}'}, "This is the envelope in which a result is stored. "),
        (RECORD | {"result": "ch_1"}, "This is not JSON: Expecting value: line 1 column 1 (char 0)."),
        (
            RECORD | {"result": "1.2E+15"},
            "a spreadsheet may have rounded '1.2E+15'. Decide about this key in the admin.",
        ),
        (RECORD | {"result": "1234567890123450"}, "a spreadsheet may have rounded '1234567890123450'. "),
        (RECORD | {"id": "1.2E+15"}, "id, reference or version is damaged. Import them as text."),
        (RECORD | {"reference": "1.2E+15"}, "id, reference or version is damaged. "),
        (RECORD | {"version": "1.2E+15"}, "id, reference or version is damaged. "),
    ],
)
def test_one_bad_row_refuses_the_whole_file(fill: Fill, made: dict[str, str], why: str) -> None:
    """Nothing is decided, also not about the rows above it."""
    given, before = fill(doubt=RECORD, stuck=made), rows()
    status, text = resolve(given, "--apply")
    assert (status, text.startswith(f"Nothing was decided. {given[11:]}, line 6: {why}"), rows()) == (1, True, before)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        (
            b"decision,",
            b"Entscheidung,",
            "line 1: the heading must name each of these columns once, as CSV in UTF-8: d",
        ),
        (b"decision,", b"step,", "line 1: the heading must name "),
        (b"record,call,1,", b'record,call,"""\xe4""",', "line 3: it is not UTF-8. Save the list as CSV UTF-8."),
        (b"record,call,1,", b"record,call,1,,,,,,,,,,,,,,,,,", "line 3: its cells do not match the heading. "),
        (b"record,call,1,", b'record,call,"1"2,', "line 3: ',' expected after '\"'."),
        (b"record,call,1,", b"record,call,1\n", "line 3: its cells do not match the heading. "),
    ],
)
def test_a_file_that_is_no_such_list_is_refused(fill: Fill, old: bytes, new: bytes, where: str) -> None:
    """With its line, and what to type."""
    given = fill(doubt={"decision": "record", "step": "call", "result": "1"})
    path, before = Path(given[11:]), rows()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    status, text = resolve(given, "--apply")
    assert (status, text.startswith(f"Nothing was decided. {path}, {where}"), rows()) == (1, True, before)


def test_a_model_that_is_written_to_another_database_than_the_key(fill: Fill) -> None:
    """Its alias is part of the result. `--database` says where the keys are."""
    given = fill(doubt=RECORD | {"result": '{"model": "shopapp.Order", "pk": 1}'})
    said = (
        "The key is in the database “other”, but shopapp.Order is written to “default”. Say which one the row is in: "
    )
    status, text = resolve(given, "--database=other")
    assert (status, text.startswith(f"Nothing was decided. {given[11:]}, line 3: {said}")) == (1, True)


def test_a_row_twice(fill: Fill) -> None:
    """The second would be about a key that the first has changed."""
    twice = {"id": str(get("stuck").pk), **RELEASE}
    assert (
        "line 6: a line above decides about this key, too. " in resolve(fill(doubt=twice, stuck=RELEASE), "--apply")[1]
    )


@pytest.mark.parametrize("result", ['{"id": "ch_1", "n": 1}', '"ch_1"'])
def test_one_charge_for_two_keys(fill: Fill, result: str) -> None:
    """Copied down by mistake. Nothing is decided: the second customer's order would have the first one's charge."""
    make_leased("doubt 2", "failed", doubt=True)
    record = RECORD | {"result": result}
    again = record | {"result": '{"n": 1, "id": "ch_1"}' if "n" in result else result}
    before = rows()
    status, text = resolve(fill(doubt=record, **{"doubt 2": again}), "--apply")
    assert (status, "line 4: line 3 records the same result of 'call', but each call has " in text) == (1, True)
    assert rows() == before


def test_a_result_of_another_shape_is_left_alone(fill: Fill) -> None:
    """`"ch_1"` in place of the object that the call returns, until the person says that the view can read it."""
    IdempotencyKey.objects.filter(key="done").update(operation="POST refund/")
    get("done").steps.filter(name="call").update(result='{"value": {"id": "ch_0"}}')
    given, before = fill(doubt=RECORD | {"result": '"ch_1"'}, stuck=RELEASE), get("doubt").steps.get(name="call")
    for options in ([], ["--apply"]):
        status, text = resolve(given, *options)
        why = (
            "Skipped: earlier results were object (id), and this one is string: check that the view can read it, then "
            "add --recorded-results-are-right."
        )
        assert (status, text.splitlines()[0].endswith(why)) == (3, True)
    assert get("doubt").steps.get(name="call").result == before.result is None
    assert resolve(fill(doubt=RECORD | {"result": '"ch_1"'}), "--recorded-results-are-right", "--apply")[0] == 0
    assert get("doubt").steps.get(name="call").result == '{"value": "ch_1"}'


def test_what_is_no_receipt_may_be_the_same_for_two_keys(fill: Fill) -> None:
    """Such as true, for a mail that was sent."""
    make_leased("doubt 2", "failed", doubt=True)
    IdempotencyKey.objects.filter(key="doubt 2").update(operation="POST refund/")
    record = RECORD | {"result": "true"}
    assert resolve(fill(doubt=record, **{"doubt 2": record}), "--apply")[0] == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--state=stuck"], "--from-csv: the file contains the keys, decisions and bodies. "),
        (["--body=x"], "--from-csv: the file contains the keys, decisions and bodies. "),
        (["--release"], "not allowed with argument"),
        (["--apply", "--by="], "--apply needs --by, which says who decides, and --reason, which says why."),
    ],
)
def test_other_options(fill: Fill, options: list[str], why: str) -> None:
    """Two ways to select keys or to decide about them would be one too many."""
    assert why in resolve(fill(stuck=RELEASE), *options)[1]


def test_code_cannot_pass_two_decisions(fill: Fill) -> None:
    """`call_command` does not know which options exclude each other."""
    options = {"from_csv": fill(stuck=RELEASE)[11:], "close": 410, "apply": True, "by": "bob", "reason": "T"}
    with pytest.raises(CommandError, match="the file contains the keys, decisions and bodies"):
        call_command("resolve_idempotency_keys", **options)
    assert get("stuck").status == "in_progress"


def test_nothing_to_decide(fill: Fill) -> None:
    """An empty list, or no file."""
    assert resolve(fill(), "--apply") == (3, "No row of the file has a decision.")
    status, text = resolve("--from-csv=/gone.csv")
    assert (status, "No such file" in text) == (1, True)
