"""``python tests/mutation/run.py`` (``make mutants``): does a test notice small faults in the mathematical core?

Every mutant is the source of one module with one small change: another comparison, operator, constant or condition. The
tests below are run against it in a forked process, the quick ones first; a mutant is killed if one of them fails, or
takes far longer than it should. Survivors are listed; those of which it is known why no test can tell them from the
original stand in `EXPLAINED`, all others are gaps in the tests. The result is written to
``benchmarks/results/mutants.md``, and which were killed to ``mutants.json``: a run goes on where the last ended, for
tests are added more often than taken away. ``--anew`` forgets what was before.

Why not a tool that others keep? Two were tried on ``model/losses.py`` with the quick tests, beside other work on two
cores. mutmut 3.8 took 5 minutes for 132 mutants and found the same gaps and more; this script 11 for 83. But mutmut
fails with pytest 9.2 and had to be repaired for the trial. It changes neither constants of modules and classes nor
functions with a decorator: 80 of our 778 mutants, 20 of the 83 of the losses. And it can leave out lines, but not the
one mutant of a line that is known to be equivalent. cosmic-ray 8.7 made 466 mutants (``/`` becomes ``<<``), started
Python for each, and tried 11 in 5 minutes; it changes the file itself, and left it changed when it was stopped.
"""

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "robustnmf"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.md"
VERDICTS = RESULTS.with_suffix(".json")
CORE = ["model/losses", "model/scales", "model/outliers", "model/weighting"]
SOLVERS = [
    "problem",
    "multiplicative",
    "hals",
    "nesterov",
    "shared_gram",
    "armijo",
    "absolute",
    "sparse_error",
]
MODULES = [*CORE, *(f"solvers/{name}" for name in SOLVERS)]
QUICK = ["test_core.py", "test_parts.py", "test_solvers.py", "test_one_pass.py"]
THOROUGH = ["test_algorithm.py", "test_methods.py", "test_penalties.py", "test_properties.py"]
# Seconds after which a mutant counts as hanging.
PATIENCE = 300

# --- Mutants ----------------------------------------------------------------------------------------------------------

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


class Mutant(NamedTuple):
    """A module with one change."""

    module: str
    line: int
    before: str
    after: str
    tree: ast.Module
    number: int = 0
    """Which of those of the same name."""

    @property
    def name(self) -> str:
        """What tells it from others, whatever the line."""
        return f"{self.module}: {self.before} -> {self.after}"

    @property
    def key(self) -> str:
        """What it is known by in the file of verdicts."""
        return sha256(f"{self.name} {self.number}".encode()).hexdigest()[:16]


def mutants(module: str) -> Iterator[Mutant]:
    """Yield all mutants of a module."""
    source = (SOURCE / f"{module}.py").read_text(encoding="utf-8")
    n_places = sum(1 for _ in _places(ast.parse(source)))
    seen: Counter[str] = Counter()
    for k in range(n_places):
        tree = ast.parse(source)
        node, change = list(_places(tree))[k]
        statement = _statement_of(tree, node)
        before = _text(statement)
        change()
        mutant = Mutant(module, statement.lineno, before, _text(statement), ast.fix_missing_locations(tree))
        yield mutant._replace(number=seen[mutant.name])
        seen[mutant.name] += 1


def _text(statement: ast.stmt) -> str:
    """Return a statement, or the head of a compound one."""
    return ast.unparse(statement).split("\n")[0] if not isinstance(statement, ast.With) else ast.unparse(statement)


def _statement_of(tree: ast.Module, node: ast.AST) -> ast.stmt:
    """Return the innermost statement that holds a node."""
    holds = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and any(n is node for n in ast.walk(s))]
    return holds[-1]


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, Any]]:
    """Yield the nodes that can be changed, and what changes each."""
    skipped = {id(inner) for node in ast.walk(tree) for part in _not_run(node) for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) not in skipped:
            yield from ((node, change) for change in _changes(node))


def _not_run(node: ast.AST) -> list[ast.AST]:
    """Return parts that are types, texts or messages: nothing that is computed with."""
    if isinstance(node, ast.AnnAssign):
        fixed = node.value is not None and "ClassVar[str]" in ast.unparse(node.annotation)
        return [node.annotation, *([node.value] if fixed and node.value is not None else [])]
    if isinstance(node, ast.FunctionDef):
        arguments = [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]
        types = [argument.annotation for argument in arguments if argument.annotation]
        is_protocol = ast.unparse(node.body[-1]) == "..."
        return [
            *types,
            *node.decorator_list,
            *([node.returns] if node.returns else []),
            *([node] if is_protocol else []),
        ]
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases]
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return [node]
    # Groups and types of arguments that are only named.
    return [node] if isinstance(node, ast.Assign) and ast.unparse(node).startswith(("Group =", "__all__ =")) else []


def _changes(node: ast.AST) -> Iterator[Any]:
    """Yield functions that change a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield lambda: node.ops.__setitem__(0, COMPARISONS[type(node.ops[0])]())
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield lambda: setattr(node, "op", OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield lambda: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        yield lambda: _become(node, node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float | bool):
        value = node.value
        changed = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value or 1.0
        yield lambda: setattr(node, "value", changed)
    elif isinstance(node, ast.IfExp):
        yield lambda: node.__dict__.update(body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Break):
        yield lambda: _become(node, ast.Pass())


def _become(node: ast.AST, other: ast.AST) -> None:
    """Turn a node into another in place."""
    node.__class__ = other.__class__  # type: ignore[assignment]
    node.__dict__.update(other.__dict__)


# --- Trial ------------------------------------------------------------------------------------------------------------


class _Loader(importlib.abc.Loader):
    """Loads a mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def exec_module(self, module: Any) -> None:
        exec(compile(self.mutant.tree, str(SOURCE / f"{self.mutant.module}.py"), "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self.name, self.loader = f"robustnmf.{mutant.module.replace('/', '.')}", _Loader(mutant)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self.loader) if name == self.name else None


def passes(mutant: Mutant | None, files: list[str]) -> bool:
    """Run tests in a forked process, which has the libraries but not yet this package, and return whether all pass."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            sys.stdout = sys.stderr = io.StringIO()
            if mutant is not None:
                sys.meta_path.insert(0, _Finder(mutant))
            import pytest

            paths = [str(ROOT / "tests" / name) for name in files]
            options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", f"--rootdir={ROOT}"]
            os._exit(int(pytest.main([*options, *paths]) != 0))
        os._exit(1)
    return _status(child) == 0


def _status(child: int) -> int:
    """Return the status of a child, or that of a kill if it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def survives(mutant: Mutant, thorough: bool) -> bool:
    """Return whether no test notices."""
    return passes(mutant, QUICK) and (not thorough or passes(mutant, THOROUGH))


def try_all(found: list[Mutant], thorough: bool, jobs: int, minutes: float) -> Iterator[tuple[Mutant, bool]]:
    """Yield every mutant and whether it survives, from some processes at a time, until the minutes are over."""
    end = time.monotonic() + 60 * minutes
    for part in range(0, len(found), jobs):
        if time.monotonic() > end:
            return
        pipes = []
        for mutant in found[part : part + jobs]:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writing, b"1" if survives(mutant, thorough) else b"0")
                os._exit(0)
            os.close(writing)
            pipes.append((mutant, child, reading))
        for mutant, child, reading in pipes:
            verdict = os.read(reading, 1)
            os.close(reading)
            os.waitpid(child, 0)
            yield mutant, verdict == b"1"


def report(tried: list[tuple[Mutant, bool]], n_all: int, explained: dict[str, str], command: str) -> str:
    """Return the result as Markdown; `n_all` is the number of mutants that could have been tried."""
    lines = ["# Mutants of the mathematical core", ""]
    tried = sorted(tried, key=lambda one: (MODULES.index(one[0].module), one[0].line))
    survivors = [mutant for mutant, survived in tried if survived]
    known = [mutant for mutant in survivors if mutant.name in explained]
    lines += [
        f"`{command}`, the last of some runs: {len(tried)} of {n_all} mutants tried, {len(tried) - len(survivors)} "
        f"killed, {len(survivors)} survive, of which {len(known)} are explained below.",
        "",
        "| module | mutants | killed | survivors |",
        "| --- | --- | --- | --- |",
    ]
    for module in dict.fromkeys(mutant.module for mutant, _ in tried):
        verdicts = [survived for mutant, survived in tried if mutant.module == module]
        lines.append(f"| `{module}` | {len(verdicts)} | {len(verdicts) - sum(verdicts)} | {sum(verdicts)} |")
    lines += ["", "## Survivors", ""]
    for mutant in survivors:
        why = explained.get(mutant.name, "not explained: a gap in the tests.")
        lines += [f"- `{mutant.module}.py`, line {mutant.line}: `{mutant.before}` became `{mutant.after}`. {why}"]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=MODULES, help="such as model/losses or solvers/hals")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="run the quick tests only")
    parser.add_argument(
        "--minutes", type=float, default=inf, help="begin no mutant later than this; their order is mixed"
    )
    parser.add_argument("--anew", action="store_true", help="try those again that were killed before, or are explained")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = [mutant for module in options.modules for mutant in mutants(module)]
    if options.list:
        for mutant in found:
            print(f"{mutant.module}:{mutant.line}: {mutant.before}  ->  {mutant.after}")
        print(len(found))
        return
    # Libraries are loaded once; this package, of which a part is changed, by each child.
    import hypothesis  # noqa: F401
    import numba  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize
    import scipy.stats  # noqa: F401
    import sklearn.decomposition  # noqa: F401
    from explained import EXPLAINED

    names = {mutant.name for mutant in found}
    gone = [name for name in EXPLAINED if name not in names and name.split(":")[0] in options.modules]
    if gone:
        sys.exit("\n".join(["These are explained, but the source has changed:", *gone]))
    if not passes(None, QUICK if options.quick else [*QUICK, *THOROUGH]):
        sys.exit("The tests fail without any change: repair them first.")
    survived: dict[str, bool] = {}
    if VERDICTS.exists() and not options.anew:
        survived = json.loads(VERDICTS.read_text())
    gaps = {mutant.key for mutant in found if survived.get(mutant.key) and mutant.name not in EXPLAINED}
    left = [mutant for mutant in found if mutant.key in gaps or mutant.key not in survived]
    Random(0).shuffle(left)
    left.sort(key=lambda mutant: mutant.key not in gaps)  # first those that survived before: is the gap closed?
    for n_tried, (mutant, verdict) in enumerate(try_all(left, not options.quick, options.jobs, options.minutes), 1):
        survived[mutant.key] = verdict
        VERDICTS.write_text(json.dumps(survived, indent=0, sort_keys=True) + "\n")
        if verdict:
            print(f"{mutant.module}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)
        if n_tried % 20 == 0:
            print(f"{n_tried} of {len(left)}", flush=True)
    tried = [(mutant, survived[mutant.key]) for mutant in found if mutant.key in survived]
    command = " ".join(["python", "tests/mutation/run.py", *sys.argv[1:]])
    text = report(tried, len(found), EXPLAINED, command)
    print(text)
    options.out.write_text(text, encoding="utf-8")
    if any(verdict and mutant.name not in EXPLAINED for mutant, verdict in tried):
        sys.exit(1)


if __name__ == "__main__":
    main()
