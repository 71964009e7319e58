"""Break what decides, one line at a time, and count the breaks that no test sees: `python -m tests.extra.mutation`.

mutmut writes each broken function beside the original one, into the folder `mutants`. Which of them runs is decided at
run time, so that one process, which has imported and collected everything, can be forked for each break: forks.py.

Breaks that only change the words of an error are left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, cast

from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation.trampoline import set_mutant_under_test

MUTANTS = Path("mutants")


class Break(NamedTuple):
    name: str
    """mutmut's: the module, the function, and a number."""
    path: Path
    """The file that it breaks."""

    @property
    def function(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def original(self) -> str:
        """The name of the function as it was."""
        return f"{self.function.partition('__mutmut_')[0]}__mutmut_orig"

    @property
    def part(self) -> str:
        return part_of(self.path)


def part_of(path: Path | str) -> str:
    """The folder of `engine/` or of the package that a file, or a pattern of [tool.mutmut], is in."""
    folders = Path(path).with_suffix("").parts
    return folders[2] if folders[1] == "engine" else folders[1]


def parts() -> list[str]:
    return sorted({part_of(pattern) for pattern in config().only_mutate})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.extra.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="breaks, such as a run has printed; * and ? are wildcards")
    parser.add_argument("--part", action="append", choices=parts(), help="only this one; can be repeated")
    parser.add_argument("--limit", type=int, help="so many breaks, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice, and of the functions of --clean")
    parser.add_argument("--tests", nargs="+", default=config().pytest_add_cli_args_test_selection, help="other tests")
    parser.add_argument("--trace", type=Path, help="where to keep which tests run what, for another run of this code")
    parser.add_argument("--seconds", type=int, default=60, help="of tests for each break")
    parser.add_argument("--clean", type=int, default=5, help="runs of each process without a break, which must pass")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with an embedded PostgreSQL of its own")
    options = parser.parse_args()
    if options.jobs > 1 and "DATABASE_URL" in os.environ:
        parser.error("--jobs: each process needs a server of its own. Leave it out, or DATABASE_URL.")
    return options


def make(only: list[str] | None, names: list[str], jobs: int) -> list[Break]:
    """Copy the project, break the modules of these parts, and return the breaks of these names."""
    shutil.rmtree(MUTANTS, ignore_errors=True)
    MUTANTS.mkdir()
    config().only_mutate = [pattern for pattern in config().only_mutate if only is None or part_of(pattern) in only]
    set_mutant_under_test("mutant_generation")
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        mutmut.copy_src_dir()
        mutmut.copy_also_copy_files()
        mutmut.create_mutants(jobs)
    made, _ = mutmut.collect_source_file_mutation_data(mutant_names=names)
    return [Break(name, data.path) for data, name, _ in made]


class _WithoutWords(ast.NodeTransformer):
    """Without the words of errors. A text without a space may be the code of a problem, which decides."""

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and " " in inner.value:
                inner.value = "words"
        return node


class Source:
    """A module with its original functions and the broken ones."""

    def __init__(self, path: Path) -> None:
        text = Path(MUTANTS, path).read_text()
        self.lines = text.splitlines()
        self.functions = functions_of(ast.parse(text))
        without_words = functions_of(_WithoutWords().visit(ast.parse(text)))
        self.code = {name: [ast.dump(part) for part in (f.args, *f.body)] for name, f in without_words.items()}

    def changes_only_words(self, one: Break) -> bool:
        return self.code[one.function] == self.code[one.original]

    def statement(self, one: Break) -> list[int]:
        """The lines of the innermost statement that is broken, in the original function; none if it is not inside."""
        original, broken = self.functions[one.original], self.functions[one.function]
        before, after = (self.lines[f.lineno : f.end_lineno] for f in (original, broken))  # without the names
        same = next((n for n, lines in enumerate(zip_longest(before, after)) if lines[0] != lines[1]), -1)
        line = original.lineno + 1 + same
        statements = [node for node in ast.walk(original) if isinstance(node, ast.stmt)]
        innermost = max((s for s in statements if s.lineno <= line <= last_line(s)), key=lambda s: s.lineno)
        if innermost is original:
            return []
        block = getattr(innermost, "body", None)
        header = block and line < block[0].lineno  # of an `if`, a `with`: its block may not run
        return [*range(innermost.lineno, block[0].lineno if header else last_line(innermost) + 1)]


def functions_of(module: ast.AST) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {f.name: f for f in ast.walk(module) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}


def last_line(statement: ast.stmt) -> int:
    return cast(int, statement.end_lineno)


def pytest(*options: str) -> subprocess.Popen[bytes]:
    """Start pytest in the copy."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.extra.mutation.forks",
        *config().pytest_add_cli_args,
        *options,
    ]
    return subprocess.Popen(command, cwd=MUTANTS)


def table(breaks: list[Break], left_out: set[Break], outcomes: dict[str, str]) -> str:
    rows = ["| Part | Breaks | Left out | Seen | Not seen |", "|---|---|---|---|---|"]
    for part in sorted({one.part for one in breaks}):
        of_part = [one for one in breaks if one.part == part]
        said = [outcomes[one.name] for one in of_part if one.name in outcomes]
        seen = sum(outcome.startswith("seen") for outcome in said)
        rows.append(
            f"| `{part}` | {len(of_part):,} | {len(left_out & {*of_part}):,} | {seen:,} | {len(said) - seen:,} |"
        )
    return "\n".join(rows)


def main() -> int:
    options = arguments()
    breaks = make(options.part, options.names, options.jobs)
    if options.limit is not None:
        breaks = random.Random(options.seed).sample(breaks, min(options.limit, len(breaks)))
    sources = {path: Source(path) for path in {one.path for one in breaks}}
    left_out = {one for one in breaks if sources[one.path].changes_only_words(one)}
    chosen = [(one.name, sources[one.path].statement(one)) for one in breaks if one not in left_out]
    trace = (options.trace or MUTANTS / "trace.json").absolute()
    traced = 0 if trace.exists() else pytest(f"--write-trace={trace}", *options.tests).wait()
    if traced > 1:  # 1: a test has failed, and sees no break. The others can.
        return traced
    running = []
    for job in range(options.jobs):
        Path(MUTANTS, f"breaks-{job}.json").write_text(json.dumps(dict(chosen[job :: options.jobs])))
        what = f"--read-trace={trace}", f"--breaks=breaks-{job}.json"
        check = f"--seconds={options.seconds}", f"--clean={options.clean}", f"--seed={options.seed + job}"
        running.append(pytest(*what, *check, *options.tests))
    failed = [process.wait() for process in running]
    lines = [line for path in MUTANTS.glob("breaks-*.outcomes") for line in path.read_text().splitlines()]
    outcomes = dict(line.split(": ", 1) for line in lines)
    print("", table(breaks, left_out, outcomes), "", sep="\n")
    print(", ".join(f"{number:,} {outcome}" for outcome, number in Counter(outcomes.values()).most_common()))
    return int(bool(traced or any(failed)))


if __name__ == "__main__":
    sys.exit(main())
