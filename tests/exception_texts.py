"""Where a program tests or takes apart the text of an exception: that is for people, its type and fields for programs.

To quote a text in a sentence of one's own is no test of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

EXCEPTION = re.compile(r"\b(?:\w*Error|\w*Exception)\b")
TO_TEXT = ("str", "repr", "ascii", "format")
FIELDS = ("args", "hint", "message", "msg")  # of an exception, that hold text
# What may be given a bare text: it prints or keeps it. A class, such as an exception, may too.
MAY_TAKE = (
    *TO_TEXT,
    "_reply",
    "append",
    "echo",
    "first_line",
    "isinstance",
    "join",
    "log",
    "one_line",
    "print",
    "quoted",
    "type",
)
MAY_READ = ("first_line", "one_line", "quoted")  # make one line of a text, to be quoted


def tested(source: str) -> list[int]:
    """The lines at which the text of an exception is compared, searched, cut, or given to a function that might."""
    tree = ast.parse(source)
    attributes = {
        target.attr
        for scope, names in _scopes(tree)
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _is_text(node.value, names, _texts(scope, names), set())
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    lines = set()
    for scope, names in _scopes(tree):
        texts = _texts(scope, names)
        for node in ast.walk(scope):
            if any(_is_text(one, names, texts, attributes) for one in _read_by(node)):
                lines.add(node.lineno)
            if any(_is_text(one, names, texts, set(), bare=True) for one in _taken_by(node)):
                lines.add(node.lineno)
    return sorted(lines)


def _scopes(tree: ast.Module) -> Iterator[tuple[ast.AST, set[str]]]:
    """Each handler, and each function of an exception, with the names of its exceptions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name:
            yield node, {node.name}
        if isinstance(node, ast.FunctionDef | ast.Lambda) and getattr(node, "name", "") not in MAY_READ:
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            found = {one.arg for one in arguments if one.annotation and EXCEPTION.search(ast.unparse(one.annotation))}
            if found:
                yield node, found


def _texts(scope: ast.AST, names: set[str]) -> set[str]:
    """The variables that hold a text."""
    found: set[str] = set()
    for _ in range(3):  # a text may pass through several
        for node in ast.walk(scope):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.AugAssign) else None
            if value is not None and _is_text(value, names, found, set()):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return found


def _is_text(node: ast.AST, names: set[str], texts: set[str], attributes: set[str], *, bare: bool = False) -> bool:
    """Is this the text of an exception, or a sentence that quotes it? `bare` leaves such sentences out."""

    def same(one: ast.AST) -> bool:
        return _is_text(one, names, texts, attributes, bare=bare)

    def is_exception(one: ast.AST) -> bool:
        return isinstance(one, ast.Name) and one.id in names

    match node:
        case ast.Name():
            return node.id in texts
        case ast.Attribute():
            return (is_exception(node.value) and node.attr in FIELDS) or node.attr in attributes
        case ast.Call(func=ast.Name(id=name)) if name in TO_TEXT:
            return any(is_exception(one) or same(one) for one in node.args)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in ("format_exc", "format_exception", "format_exception_only")
        case ast.JoinedStr() if not bare or len(node.values) == 1:
            parts = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
            return any(is_exception(one) or same(one) for one in parts)
        case ast.IfExp():
            return same(node.body) or same(node.orelse)
        case ast.BinOp():
            return not bare and (same(node.left) or same(node.right))
        case ast.BoolOp():
            return any(map(same, node.values))
        case ast.Tuple() | ast.List():
            return any(map(same, node.elts))
    return False


def _read_by(node: ast.AST) -> list[ast.AST]:
    """What an expression or statement tests, searches or cuts."""
    match node:
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.Subscript():
            return [node.value]
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name not in ("append", "join"):
            return [value]
        case ast.For() | ast.comprehension():
            return [node.iter] if isinstance(node, ast.For) else []
        case ast.Match():
            return [node.subject]
    return []


def _taken_by(node: ast.AST) -> list[ast.AST]:
    """The arguments of a call that is not known to leave a text alone."""
    if not isinstance(node, ast.Call):
        return []
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in MAY_TAKE or name[:1].isupper():
        return []
    return [*node.args, *(one.value for one in node.keywords)]
