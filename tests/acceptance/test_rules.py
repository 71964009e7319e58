"""docs/alerts.yml and docs/grafana.json: they ask for metrics that there are, and Prometheus understands them."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from django_idempotency import signals
from tests.acceptance.pages import ROOT

yaml = pytest.importorskip("yaml")
pytest.importorskip("prometheus_client")
metrics = pytest.importorskip("django_idempotency.metrics")
DOCS = ROOT / "docs"
GAUGES = {f"idempotency_keys_{name}" for name in metrics.GAUGES}
OUTCOMES = "idempotency_key_outcomes_total"
COUNTERS = {OUTCOMES, "idempotency_keys_purged_total"}
PROMTOOL = shutil.which("promtool")
promtool_only = pytest.mark.skipif(PROMTOOL is None, reason="NOT RUN: promtool is missing: apt install prometheus")
STEADY = {"claimed": 100, "completed": 95, "replayed": 5}
"""Requests of one operation in a minute."""
FIRING: list[tuple[str | None, dict[str, int | None], dict[str, int]]] = [
    (None, {}, {}),
    ("IdempotencyCallInDoubt", {"in_doubt": 1}, {}),
    ("IdempotencyDoubtIsOld", {"oldest_in_doubt_seconds": 86401}, {}),
    ("IdempotencyHalfDone", {"half_done": 1}, {}),
    ("IdempotencyKeysStuck", {"stuck": 1}, {}),
    ("IdempotencyDatabaseUnavailable", {"database_unavailable": 1, "age_seconds": 600}, {}),
    ("IdempotencyProtectionOff", {"protection_off": 1}, {}),
    ("IdempotencyProtectionOff", {}, {"unprotected": 1}),
    ("IdempotencyPaused", {"paused": 1}, {}),
    ("IdempotencyPaused", {}, {"paused": 1}),
    ("IdempotencyOperationUnknown", {"unknown_operations": 1}, {}),
    ("IdempotencySchemasNotCounted", {"schemas_not_counted": 1}, {}),
    ("IdempotencyAtomicRequestHangs", {"oldest_atomic_in_flight_seconds": 61}, {}),
    (None, {"oldest_atomic_in_flight_seconds": 60}, {}),
    ("IdempotencyLeasedKeyIsOld", {"oldest_in_flight_seconds": 3601}, {}),
    ("IdempotencyCleanupBehind", {"cleanup_lag_seconds": 21601}, {}),
    ("IdempotencyKeysReused", {}, {"mismatched": 2}),
    (None, {}, {"mismatched": 1}),
    ("IdempotencyConflictsRising", {}, {"conflicted": 26}),
    (None, {}, {"conflicted": 24}),
    ("IdempotencyReplaysRising", {}, {"replayed": 25}),
    ("IdempotencyKeysUnusable", {}, {"missing": 4, "invalid": 4}),
    (None, {}, {"missing": 2, "invalid": 2}),
    ("IdempotencyRequestsReleased", {}, {"released": 26}),
    ("IdempotencyRequestsHeld", {}, {"held": 1}),
    ("IdempotencyReplaysRefused", {}, {"replay_refused": 2}),
    ("IdempotencyStoreBusy", {}, {"busy": 2}),
    ("IdempotencyRequestsFail", {}, {"error": 1}),
    ("IdempotencyKeysFlood", {"busiest_caller": 1001}, {"claimed": 1000}),
    (None, {"busiest_caller": 1000}, {"claimed": 1000}),
    ("IdempotencyResultsUnstored", {}, {"unstored": 1}),
    ("IdempotencyResultsUnstored", {}, {"claim_lost": 1}),
]
"""Which alert fires: by gauges (None: missing), or by the outcomes of a minute that differ from `STEADY`."""
FIRES = 'count by (alertname, job) (ALERTS{alertstate="firing",alertname!="IdempotencyMetricsMissing"})'
REPLAY_RATE = 'round(sum by (job) (operation_outcome:idempotency_requests:ratio_rate15m{outcome="replayed"}), 0.0001)'


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def dashboard() -> Any:
    return json.loads((DOCS / "grafana.json").read_text())


def shown() -> list[str]:
    """What the panels of the dashboard ask."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def asked(expressions: list[str]) -> tuple[set[str], set[str]]:
    """The metrics and the outcomes in some expressions."""
    text = " ".join(expressions)
    named = re.findall(r'outcome!?=~?"([\w|]+)"', text)
    return set(re.findall(r"(?<![\w:])idempotency_\w+", text)), set("|".join(named).split("|"))


def promtool(*args: str) -> str:
    done = subprocess.run([str(PROMTOOL), *args], capture_output=True, text=True, timeout=100, check=False)
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("expressions", [[rule["expr"] for rule in rules()], shown()], ids=["alerts", "dashboard"])
def test_metrics_and_outcomes_are_asked_for_by_their_names(expressions: list[str]) -> None:
    """A name that nothing has would never fire, and would show an empty panel."""
    names, outcomes = asked(expressions)
    assert names <= GAUGES | COUNTERS
    assert outcomes <= set(re.findall(r'(?m)^ {8}"(\w+)": ', inspect.getsource(signals)))


def test_rules_ask_for_rules_that_there_are() -> None:
    """A recorded name is spelled in several rules."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert set(re.findall(r"[a-z_]+:[a-z_]+:\w+", " ".join(rule["expr"] for rule in rules()))) == recorded


def test_the_dashboard_shows_every_metric() -> None:
    """A metric that is added is shown."""
    assert asked(shown())[0] == GAUGES | COUNTERS


@promtool_only
def test_prometheus_understands_the_rules() -> None:
    """As it starts with them."""
    told = promtool("check", "rules", str(DOCS / "alerts.yml"))
    assert told.startswith("0\n"), told
    assert f"SUCCESS: {len(rules())} rules found" in told


@promtool_only
def test_prometheus_understands_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """With values for Grafana's variables."""
    queries = [re.sub(r"\$[a-z]+", ".*", query.replace("$__rate_interval", "5m")) for query in shown()]
    recorded = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    told = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert told.startswith("0\n"), told


def test_each_alert_names_a_page_and_a_heading_that_exist() -> None:
    """A placeholder that a project replaces shows where its own text can begin."""
    for rule in rules():
        if "alert" in rule:
            page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
            headings = re.findall(r"(?m)^#+ (.*)", (ROOT / page).read_text())
            names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert not anchor or anchor in names, rule["alert"]


@promtool_only
def test_each_alert_fires_survives_gaps_and_resolves(tmp_path: Path) -> None:
    """It fires at its threshold and not below it; a gap of seven minutes fires nothing, and ends nothing."""
    times = {f"Idempotency{alert}" for *_, alerts in TIMES for alert in (alerts or "").split()}
    assert {alert for alert, _, _ in FIRING} - {None} | times == {rule["alert"] for rule in rules() if "alert" in rule}
    suite = {"rule_files": [str(DOCS / "alerts.yml")], "evaluation_interval": "1m", "tests": [history(FIRING)]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(suite))
    told = promtool("test", "rules", str(tmp_path / "tests.yml"))
    assert told.startswith("0\n"), told


BEGINS, ENDS, LAST = 60, 180, 240
"""The minutes in which the cause of an alert begins and ends, and the last one."""
GAPS = (range(30, 37), range(150, 157))
"""The minutes whose scrapes fail: while nothing has happened, and while the alert fires."""
QUIET = (29, 31, 36, 45, 46, 59)
FIRED = (149, 156, 158, 179)
ONCE = ("held", "unstored", "claim_lost", "unprotected", "paused", "error")
"""Counters that have counted an event long ago."""


def history(cases: list[Any]) -> dict[str, Any]:
    """Four hours of samples of some jobs, each with a case of its own, and what Prometheus makes of them."""
    series, fires, shares = {}, [], []
    for number, (alert, gauges, outcomes) in enumerate(cases):
        job, rates = f'job="{number}"', {**STEADY, **outcomes}
        fires += [] if alert is None else [f'{{alertname="{alert}",{job}}}']
        shares.append((f"{{{job}}}", round(rates["replayed"] / (sum(rates.values()) - rates["claimed"]), 4)))
        for name, value in {"in_doubt": 0, "database_unavailable": 0, **gauges}.items():
            values = [value if caused(minute) else 0 for minute in range(LAST + 1)]
            series[f'idempotency_keys_{name}{{{job},database="d"}}'] = values
        for name in {**dict.fromkeys(ONCE, 0), **rates}:
            count, counts = 3, list[int]()
            for minute in range(LAST + 1):
                count += (rates if caused(minute) else STEADY).get(name, 0)
                counts.append(count)
            series[f'{OUTCOMES}{{{job},operation="o",outcome="{name}"}}'] = counts
    return {
        "name": str([*enumerate(cases)]),
        "interval": "1m",
        "input_series": [{"series": name, "values": " ".join(scraped(values))} for name, values in series.items()],
        "promql_expr_test": [
            *(expected(FIRES, minute, []) for minute in (*QUIET, LAST)),
            *(expected(FIRES, minute, [(labels, 1) for labels in fires]) for minute in FIRED),
            expected(REPLAY_RATE, 179, shares),
        ],
    }


def caused(minute: int) -> bool:
    return BEGINS <= minute < ENDS


def scraped(values: Sequence[int | None]) -> list[str]:
    """The samples in promtool's notation: "stale" is what a failed scrape leaves."""
    missing = [value is None or any(minute in gap for gap in GAPS) for minute, value in enumerate(values)]
    return ["stale" if gone else str(value) for gone, value in zip(missing, values, strict=True)]


def expected(expression: str, minute: int, samples: list[tuple[str, float]]) -> dict[str, Any]:
    found = [{"labels": labels, "value": value} for labels, value in samples]
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": found}


DOUBT, HELD = 'idempotency_keys_in_doubt{job="shop",database="default"}', f'{OUTCOMES}{{job="shop",outcome="held"}}'
UNSTORED, OFF = f'{OUTCOMES}{{job="shop",outcome="unstored"}}', 'idempotency_keys_protection_off{job="shop"}'
UNPROTECTED, PAUSED = f'{OUTCOMES}{{job="shop",outcome="unprotected"}}', 'idempotency_keys_paused{job="shop"}'
ALIVE = 'idempotency_keys_database_unavailable{job="shop"}'
MORE = "CallInDoubt MoreInDoubt"
LATER = 'idempotency_keys_in_doubt{job="shop",database="default",instance="b"}'
MISSING = 'count by (alertname) (ALERTS{alertstate="firing",alertname="IdempotencyMetricsMissing"})'
BY_JOB = 'count by (alertname, job) (ALERTS{alertstate="firing"})'
TIMES: list[tuple[str, dict[str, str], str, str, str | None]] = [
    (
        "scrapes that fail for some minutes",
        {DOUBT: "0x9 1x1 stale _x5 1x20", ALIVE: "0x11 stale _x5 0x20"},
        "16m",
        BY_JOB,
        "CallInDoubt",
    ),
    ("a doubt that was settled", {DOUBT: "1x20 0x40", ALIVE: "0x60"}, "22m", BY_JOB, None),
    ("held, and settled now", {HELD: "0+1x20 20x40", DOUBT: "1x20 0x40", ALIVE: "0x60"}, "22m", BY_JOB, None),
    (
        "held, and not settled",
        {HELD: "0+1x20 20x40", DOUBT: "1x60", ALIVE: "0x60"},
        "19m",
        BY_JOB,
        "CallInDoubt RequestsHeld",
    ),
    (
        "held once, and its client has given up",
        {HELD: "_x10 1x50", DOUBT: "0x9 1x50", ALIVE: "0x60"},
        "17m",
        BY_JOB,
        "CallInDoubt RequestsHeld",
    ),
    ("held once, and settled at once", {HELD: "_x10 1x50", DOUBT: "0x9 1x2 0x47", ALIVE: "0x60"}, "24m", BY_JOB, None),
    ("the first result that was not stored", {UNSTORED: "_x10 1x50", ALIVE: "0x60"}, "12m", BY_JOB, "ResultsUnstored"),
    ("the next one", {UNSTORED: "1x40 2x20", ALIVE: "0x60"}, "45m", BY_JOB, "ResultsUnstored"),
    ("a result that was not stored long ago", {UNSTORED: "_x10 1x50", ALIVE: "0x60"}, "32m", BY_JOB, None),
    (
        "protection off, and scrapes that fail",
        {OFF: "0x4 1x5 stale _x5 1x20", ALIVE: "0x9 stale _x5 0x20"},
        "15m",
        BY_JOB,
        "ProtectionOff",
    ),
    (
        "a worker that has run one request without protection, and stopped",
        {UNPROTECTED: "_x10 1x9 stale _x30", ALIVE: "0x60"},
        "12m",
        BY_JOB,
        "ProtectionOff",
    ),
    ("the same, long ago", {UNPROTECTED: "_x10 1x50", ALIVE: "0x60"}, "32m", BY_JOB, None),
    ("a pause of half an hour", {PAUSED: "0x9 1x30 0x60", ALIVE: "0x90"}, "75m", BY_JOB, None),
    ("no scrape for six minutes", {ALIVE: "0x10 stale _x20"}, "17m", MISSING, "MetricsMissing"),
    ("no scrape for four minutes", {ALIVE: "0x10 stale _x3 0x20"}, "15m", MISSING, None),
    (
        "a known doubt, and 500 new ones",
        {DOUBT: "1x180 501x90", ALIVE: "0x280"},
        "187m",
        BY_JOB,
        MORE,
    ),
    (
        "the same, while scrapes fail",
        {DOUBT: "1x180 501x9 stale _x7 501x9", ALIVE: "0x280"},
        "197m",
        BY_JOB,
        MORE,
    ),
    ("the same, an hour later", {DOUBT: "1x180 501x90", ALIVE: "0x280"}, "250m", BY_JOB, "CallInDoubt"),
    (
        "the same, and the new ones are settled",
        {DOUBT: "1x180 501x9 1x60", ALIVE: "0x280"},
        "192m",
        BY_JOB,
        "CallInDoubt",
    ),
    ("a first doubt", {DOUBT: "0x60 1x60", ALIVE: "0x120"}, "70m", BY_JOB, "CallInDoubt"),
    (
        "a known doubt, and a worker that starts",
        {DOUBT: "1x180 2x60", LATER: "_x185 2x60", ALIVE: "0x240"},
        "195m",
        BY_JOB,
        MORE,
    ),
    *(
        (
            f"a flood, with the gauge in {named}",
            {
                f'{OUTCOMES}{{job="shop",outcome="claimed"}}': "0+100x60 6000+2000x60",
                f'{OUTCOMES}{{job="other",outcome="claimed"}}': "0+10x120",
                f'idempotency_keys_busiest_caller{{job="{job}"}}': "2000x120",
                ALIVE: "0x120",
            },
            "100m",
            BY_JOB,
            alerts,
        )
        for named, job, alerts in (
            ("its own job", "shop", "KeysFlood"),
            ("a process that only serves gauges", "gauges", "KeysFlood"),
            ("another shop's job", "other", None),
        )
    ),
    (
        "a caller with most of the keys, as each day",
        {
            f'{OUTCOMES}{{job="shop",outcome="claimed"}}': "0+100x1500",
            'idempotency_keys_busiest_caller{job="shop"}': "2000x1500",
            ALIVE: "0x1500",
        },
        "1500m",
        BY_JOB,
        None,
    ),
]
"""What happens, the samples of each minute, and which alerts fire when, of the job that has them."""


@promtool_only
def test_an_alert_survives_a_gap_names_its_job_and_ends_with_its_cause(tmp_path: Path) -> None:
    """A page that begins anew with each failed scrape comes too late; one after the end wakes for nothing."""
    tests = []
    for name, series, at, expression, alerts in TIMES:
        job = ',job="shop"' if "job" in expression else ""
        found = [{"labels": f'{{alertname="Idempotency{alert}"{job}}}', "value": 1} for alert in (alerts or "").split()]
        told = {"expr": expression, "eval_time": at, "exp_samples": found}
        samples = [{"series": one, "values": values} for one, values in series.items()]
        tests.append({"name": name, "interval": "1m", "input_series": samples, "promql_expr_test": [told]})
    suite = {"rule_files": [str(DOCS / "alerts.yml")], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(suite))
    told_of_all = promtool("test", "rules", str(tmp_path / "tests.yml"))
    assert told_of_all.startswith("0\n"), told_of_all
