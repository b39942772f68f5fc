"""What a line of the user's own does with a value: the same refusal of torch's is mended one way where
the line branches, and another where it indexes."""

from __future__ import annotations

import ast
import contextlib
import linecache
from collections.abc import Iterator
from functools import cache

_DECIDES = ("max", "min", "sorted", "any", "all", "bool", "filter")


@cache
def roles(file: str, line: int) -> frozenset[str]:
    """Of ``branch``, ``while``, ``raise``, ``assert``, ``count``, ``index``: all that the line does.

    ``raise``: a branch whose body only raises. ``count``: it makes a number of steps. Every line of
    code is a ``statement``; a file that cannot be read has no roles.
    """
    found: set[str] = set()
    for node in nodes(file):
        for part in _headers(node):
            first, last = getattr(part, "lineno", 0), getattr(part, "end_lineno", 0) or 0
            if first <= line <= last:
                found.add("statement")
                found.update(_of(node, part))
    return frozenset(found)


@cache
def catches(file: str, line: int) -> bool:
    """Whether a line is in a try block that has an except."""
    return any(
        isinstance(node, ast.Try)
        and bool(node.handlers)
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
        for node in nodes(file)
    )


def nodes(file: str) -> Iterator[ast.AST]:
    """The syntax of a file, or nothing where it cannot be read."""
    with contextlib.suppress(SyntaxError, ValueError):
        yield from ast.walk(ast.parse("".join(linecache.getlines(file))))


def branch_family(file: str, line: int) -> str:
    """The family of a branch on data at a line: by what the line does."""
    found = roles(file, line)
    for role, family in (("assert", "assert"), ("raise", "raise"), ("while", "loop")):
        if role in found:
            return family
    if "classes" in found:
        return "classes"
    if "branch" in found or not found:
        return "branch"
    return "lookup" if "index" in found else "number"


def _headers(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that stand on its own lines, without the blocks inside of it."""
    if isinstance(node, (ast.If, ast.While, ast.Assert)):
        yield node.test
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        yield node.iter
    elif isinstance(node, ast.Match):
        yield node.subject
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        yield from (item.context_expr for item in node.items)
    elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
        yield node


def _of(node: ast.AST, part: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.If, ast.While, ast.Match)):
        yield "branch"
    if isinstance(node, ast.While):
        yield "while"
    if isinstance(node, ast.If) and all(isinstance(each, ast.Raise) for each in node.body):
        yield "raise"
    if isinstance(node, ast.Assert):
        yield "assert"
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield "count"
    for inner in ast.walk(part):
        if isinstance(inner, ast.comprehension):
            yield "count"
        elif isinstance(inner, ast.Subscript) and _reads_one(inner):
            yield "index"
        elif isinstance(inner, ast.Call) and _counts_classes(inner):
            yield "classes"
        elif isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == "range":
            yield "count"
        if _decides(inner):
            yield "branch"


def _decides(node: ast.AST) -> bool:
    """Whether an expression asks for the truth of something."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], (ast.In, ast.NotIn))
    if isinstance(node, ast.comprehension):
        return bool(node.ifs)
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in _DECIDES
    return isinstance(node, (ast.IfExp, ast.BoolOp))


def _counts_classes(call: ast.Call) -> bool:
    """Whether ``one_hot`` is left to find out from the data how many classes there are."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return name == "one_hot" and len(call.args) == 1 and not call.keywords


def _reads_one(node: ast.Subscript) -> bool:
    """Whether something is looked up by a value, as ``table[i]``; not ``x[0]`` or ``x[:n]``."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    fixed = all(isinstance(each, (ast.Constant, ast.Slice, ast.UnaryOp)) for each in parts)
    return isinstance(node.ctx, ast.Load) and not fixed
