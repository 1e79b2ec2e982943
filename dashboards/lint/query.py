"""A PromQL expression: its tree, and the selectors in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import promql_parser

# Stands for $__rate_interval in the tree; no expression has this range by itself.
RATE_INTERVAL = timedelta(seconds=7919)
_DURATIONS = {"__rate_interval": "7919s", "__interval": "7907s", "__range": "7901s"}
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")

Node = Any  # promql-parser has no type that all its nodes share


class NotPromqlError(ValueError):
    """The text is no PromQL, also after its variables have values."""


def substituted(text: str) -> str:
    """The text with a value in place of each Grafana variable."""
    return _VARIABLE.sub(lambda found: _DURATIONS.get(found[1] or found[2], "any"), text)


def parse(text: str) -> Node:
    """The tree of an expression.

    Raises:
        NotPromqlError: The parser does not take it.
    """
    try:
        return promql_parser.parse(substituted(text))
    except ValueError as error:
        raise NotPromqlError(f"{error} in {text}") from error


@dataclass(frozen=True, slots=True)
class Selector:
    """A choice of series, and what is around it from the outermost node inwards."""

    vector: Node
    parents: tuple[Node, ...]

    @property
    def name(self) -> str:
        """Of the metric."""
        return str(self.vector.name or "")

    @property
    def labels(self) -> set[str]:
        """That it is matched by."""
        return {str(matcher.name) for matcher in self.vector.matchers.matchers}


def children(node: Node) -> tuple[Node, ...]:
    """The expressions right below a node."""
    match node:
        case promql_parser.BinaryExpr():
            return (node.lhs, node.rhs)
        case promql_parser.Call():
            return tuple(node.args)
        case promql_parser.AggregateExpr():
            return (node.expr,) if node.param is None else (node.param, node.expr)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return (node.expr,)
        case promql_parser.MatrixSelector():
            return (node.vector_selector,)
        case _:
            return ()


def nodes(root: Node) -> Iterator[Node]:
    """All nodes of a tree."""
    yield root
    for child in children(root):
        yield from nodes(child)


def selectors(root: Node, parents: tuple[Node, ...] = ()) -> Iterator[Selector]:
    """All selectors of a tree."""
    if isinstance(root, promql_parser.VectorSelector):
        yield Selector(root, parents)
    for child in children(root):
        yield from selectors(child, (*parents, root))


def bare(node: Node) -> Node:
    """The node within any parentheses."""
    while isinstance(node, promql_parser.ParenExpr):
        node = node.expr
    return node
