"""The catalogue of functions: of each its rule, which types and casts its arguments, and its kernel over Arrow values.

What: `Function`, `function`, `plain`, `call`; `Signature`, `Value`.
Why: one entry is all that a function needs; binder and evaluator name none.
Stays out: the functions, in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from swjoin.expressions.tree import Call, Expr, Literal, can_fail

Value: TypeAlias = "pa.Array[Any] | pa.Scalar[Any]"
Options: TypeAlias = "tuple[Any, ...]"


class Signature(NamedTuple):
    """args: cast to the types that the kernel takes. can_fail: the kernel raises `pyarrow.ArrowInvalid` for some values."""

    args: tuple[Expr, ...]
    type: pa.DataType
    can_fail: bool = False


Rule: TypeAlias = Callable[[Sequence[Expr], Options], Signature]
# kernel(arguments, options, type of the result): arrays of one length, or scalars
Kernel: TypeAlias = Callable[[Sequence[Value], Options, pa.DataType], Value]


class Function(NamedTuple):
    """kernel: None where the evaluator has the function itself, because it does not evaluate all arguments for all rows."""

    rule: Rule
    kernel: Kernel | None


FUNCTIONS: dict[str, Function] = {}


def function(name: str, rule: Rule) -> Callable[[Kernel], Kernel]:
    """Enter a kernel under this name."""

    def enter(kernel: Kernel) -> Kernel:
        FUNCTIONS[name] = Function(rule, kernel)
        return kernel

    return enter


def plain(compute: Callable[..., Value]) -> Kernel:
    """The kernel that is a function of the arguments alone."""
    return lambda args, options, kind: compute(*args)


def call(name: str, args: Sequence[Expr], options: Options = (), text: object = "") -> Expr:
    """A function of arguments, typed; a literal if all arguments are. text: as written. UserError for wrong types."""
    found = FUNCTIONS[name].rule(args, options)
    shown = text or f"{name}({', '.join(str(arg.text) for arg in found.args)})"
    fails = found.can_fail or any(map(can_fail, found.args))
    made = Call(name, found.args, found.type, options, fails, shown)
    kernel = FUNCTIONS[name].kernel
    if kernel is None or not all(isinstance(arg, Literal) for arg in made.args):
        return made
    try:
        value = kernel([arg.scalar for arg in made.args if isinstance(arg, Literal)], options, made.type)
    except pa.ArrowInvalid:  # an error only if a row needs the value
        return made
    return Literal(value if isinstance(value, pa.Scalar) else value[0])
