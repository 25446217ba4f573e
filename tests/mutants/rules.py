"""Rules by which one line of the code becomes another, and where they do not apply.

Each rule stands for a mistake that is easily made: a bound that is off by one, a condition that is turned round, a step
that is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

# Modules and rooms of `src/dcp` that keep data safe, and streams moving.
ROOMS = ("position.py", "session", "client", "spark")


# Modules without rules of their own: tables, help texts, and the words of errors, which tests compare as a whole.
_TABLES = {"client/options.py", "client/network_errors.py", "client/stats.py"}
# What is said to people is no rule: these calls, and what is raised, may say anything.
_WORDS = {"log", "warnings", "click"}


class Mutant(NamedTuple):
    """A change of one place in a module of `src/dcp`.

    start, end: the bytes of the module that `text` replaces. rule: name of the rule. number, line: of the line in which
    they begin. function: line in which the function begins, as its code object has it.
    """

    module: str
    rule: str
    start: int
    end: int
    text: str
    number: int
    line: str
    function: int

    def applied(self, code: str) -> str:
        """Return the code of the module with the change."""
        data = code.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


class Equivalent(NamedTuple):
    """A mutant that no test can notice, by its line and what stands there instead, and the reason."""

    module: str
    line: str
    rule: str
    reason: str


EQUIVALENTS: list[Equivalent] = [
    Equivalent(
        "position.py",
        "if self.seqno <= seqno:",
        "< in a comparison",
        "at the seqno itself the position cut short there is the position",
    ),
]

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


def modules(source: Path) -> list[str]:
    """Return the modules that rules apply to, below `dcp`."""
    package = source / "dcp"
    found = [path for room in ROOMS for path in (sorted((package / room).rglob("*.py")) or [package / room])]
    return [name for path in found if (name := path.relative_to(package).as_posix()) not in _TABLES]


def mutants(source: Path) -> list[Mutant]:
    """Return all mutants, in order, without the known equivalents."""
    known = {(one.module, one.line, one.rule) for one in EQUIVALENTS}
    found = (mutant for module in modules(source) for mutant in _Module(source / "dcp" / module, module).mutants())
    # Those of nested functions are found twice.
    once = {(mutant.module, mutant.start, mutant.text): mutant for mutant in reversed([*found])}
    return [mutant for mutant in reversed([*once.values()]) if (mutant.module, mutant.line, mutant.rule) not in known]


class _Module:
    """The mutants of one module."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._data = path.read_bytes()
        self._lines = self._data.splitlines(keepends=True)
        self._begins = [0, *accumulate(map(len, self._lines))]
        self._function = 0

    def mutants(self) -> Iterator[Mutant]:
        """Yield the mutants of all functions. Those of a nested function are the outer one's."""
        functions = [node for node in ast.walk(ast.parse(self._data)) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            self._function = min([function.lineno, *(each.lineno for each in function.decorator_list)])
            if function.name == "__repr__":
                continue
            for statement in function.body:
                for node in ast.walk(statement):
                    if isinstance(node, ast.stmt):
                        yield from self._of_statement(node)

    def _of_statement(self, node: ast.stmt) -> Iterator[Mutant]:
        if _is_words(node):
            return
        if _is_step(node):
            yield self._change(node, "pass", "a step left out")
        elif isinstance(node, ast.If | ast.While):
            yield self._change(node.test, "False", "a condition that never holds")
        # Statements inside of it have mutants of their own.
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                for each in ast.walk(child):
                    yield from self._of_expression(each)

    def _of_expression(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                instead = _COMPARED[type(operator)]
                yield self._between(left, right, instead, f"{instead} in a comparison")
        elif isinstance(node, ast.BoolOp):
            instead = "or" if isinstance(node.op, ast.And) else "and"
            for left, right in pairwise(node.values):
                yield self._between(left, right, instead, f"{instead} for its opposite")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._change(node, f"({ast.unparse(node.operand)})", "not left out")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            instead = "-" if isinstance(node.op, ast.Add) else "+"
            if not isinstance(node.left, ast.JoinedStr | ast.List):
                yield self._between(node.left, node.right, instead, f"{instead} for its opposite")
        elif isinstance(node, ast.IfExp):
            yield self._change(node, f"({ast.unparse(node.body)})", "the first choice always")
            yield self._change(node, f"({ast.unparse(node.orelse)})", "the other choice always")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLED:
            yield self._change(node.func, _CALLED[node.func.id], f"{_CALLED[node.func.id]} for {node.func.id}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield self._change(node, str(not node.value), f"{not node.value} for its opposite")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield self._change(node, str(node.value + 1), "one more")

    def _at(self, line: int, column: int) -> int:
        return self._begins[line - 1] + column

    def _change(self, node: ast.stmt | ast.expr, text: str, rule: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin, end = self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)
        return self._mutant(begin, end, text, rule, node.lineno)

    def _between(self, left: ast.expr, right: ast.expr, text: str, rule: str) -> Mutant:
        """Return a change of the operator between two operands."""
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        begin, end = self._at(left.end_lineno, left.end_col_offset), self._at(right.lineno, right.col_offset)
        # The brackets of the operands stay where they are.
        between = self._data[begin:end]
        found = re.search(rb"not\s+in|is\s+not|is|in|and|or|[<>=!]=|[<>+-]", between)
        assert found is not None, between
        return self._mutant(begin + found.start(), begin + found.end(), text, rule, left.end_lineno)

    def _mutant(self, begin: int, end: int, text: str, rule: str, number: int) -> Mutant:
        return Mutant(
            self._name, rule, begin, end, text, number, self._lines[number - 1].decode().strip(), self._function
        )


def _is_step(node: ast.stmt) -> bool:
    """Return whether a statement can be left out without a name that is missing later."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Yield)
    if isinstance(node, ast.Assign):
        return all(isinstance(each, ast.Attribute) for each in node.targets)
    return isinstance(node, ast.AugAssign | ast.Continue | ast.Break)


def _is_words(node: ast.stmt) -> bool:
    """Return whether a statement says something to people."""
    if isinstance(node, ast.Raise | ast.Assert):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    while isinstance(call, ast.Call | ast.Attribute):
        call = call.func if isinstance(call, ast.Call) else call.value
    return isinstance(call, ast.Name) and call.id in _WORDS
