"""Functions of text.

Why: text is taken by code points, as in DuckDB. Patterns and positions are constants, which are checked before a run.
Stays out: casts to text (`functions.casts`), comparisons, which are of bytes (`functions.conditions`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.arrow_views import scalar_of
from swjoin.core.errors import UserError, one_line
from swjoin.expressions.functions.casts import cast
from swjoin.expressions.functions.catalogue import Kernel, Options, Rule, Signature, Value, function
from swjoin.expressions.text_parts import part_of
from swjoin.expressions.tree import Expr
from swjoin.expressions.types import BOOL, INT, TEXT, described, family

_SPACES = " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"


def _text(name: str, arg: Expr) -> Expr:
    if family(arg.type) not in ("text", "null"):
        raise UserError(f"{name} of {described(arg.type)}", remedy="cast it to varchar")
    return cast(arg, TEXT) if family(arg.type) == "null" else arg


def _of_text(name: str, kind: pa.DataType | None = None) -> Rule:
    """One text, and a text again if no other type is given."""

    def rule(args: Sequence[Expr], options: Options) -> Signature:
        arg = _text(name, args[0])
        return Signature((arg,), kind or arg.type)

    return rule


def _of_pattern(name: str, kind: pa.DataType | None = None, *, can_fail: bool = False) -> Rule:
    """options[0]: a regular expression."""

    def rule(args: Sequence[Expr], options: Options) -> Signature:
        try:
            pc.match_substring_regex(scalar_of("", TEXT), pattern=options[0])
        except pa.ArrowInvalid as error:
            raise UserError(f"{name}: {options[0]!r} is no regular expression: {one_line(error, 120)}") from None
        return _of_text(name, kind)(args, options)._replace(can_fail=can_fail)

    return rule


def _simple(name: str, compute: Callable[..., Value], kind: pa.DataType | None = None) -> None:
    function(name, _of_text(name, kind))(lambda args, options, to: compute(args[0]).cast(to))


_simple("lower", pc.utf8_lower)
_simple("upper", pc.utf8_upper)
_simple("reverse", pc.utf8_reverse)
_simple("length", pc.utf8_length, INT)


def _trim(compute: Callable[..., Value]) -> Kernel:
    """options[0]: the characters to cut off; none: spaces."""
    return lambda args, options, kind: compute(args[0], characters=_SPACES if options[0] is None else options[0])


function("trim", _of_text("trim"))(_trim(pc.utf8_trim))
function("ltrim", _of_text("ltrim"))(_trim(pc.utf8_ltrim))
function("rtrim", _of_text("rtrim"))(_trim(pc.utf8_rtrim))


@function("slice", _of_text("substr"))
def _slice(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    """options: start and stop as Python's slices count them, stop None: to the end."""
    return pc.utf8_slice_codeunits(args[0], start=options[0], stop=options[1])


def _joined(name: str) -> Rule:
    def rule(args: Sequence[Expr], options: Options) -> Signature:
        texts = [arg if family(arg.type) == "text" else cast(arg, TEXT) for arg in args]
        large = any(arg.type == pa.large_string() for arg in texts)
        kind = pa.large_string() if large else TEXT
        return Signature(tuple(cast(arg, kind) for arg in texts), kind)

    return rule


@function("concat", _joined("concat"))
def _concat(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    nothing = scalar_of("", kind)
    return pc.binary_join_element_wise(*(pc.coalesce(arg, nothing) for arg in args), nothing)


@function("||", _joined("||"))
def _append(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return pc.binary_join_element_wise(*args, scalar_of("", kind), null_handling="emit_null")


@function("split_part", _of_text("split_part"))
def _split_part(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    """options: separator, number of the part from 1 on. A part that is not there is ''."""
    if isinstance(args[0], pa.Scalar):
        return part_of(pa.array([args[0].as_py()], kind), *options)[0]
    return part_of(args[0], *options)


@function("replace", _of_text("replace"))
def _replace(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return pc.replace_substring(args[0], pattern=options[0], replacement=options[1])


# ---------------------------------------------------------------- patterns


@function("contains", _of_text("contains", BOOL))
def _contains(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return pc.match_substring(args[0], pattern=options[0])


@function("starts_with", _of_text("starts_with", BOOL))
def _starts_with(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return pc.starts_with(args[0], pattern=options[0])


@function("ends_with", _of_text("ends_with", BOOL))
def _ends_with(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return pc.ends_with(args[0], pattern=options[0])


def like_pieces(pattern: str, escape: str | None) -> list[str | None]:
    """The pattern as characters; None stands for %, "" for _."""
    found: list[str | None] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == escape:
            at += 1
            if at == len(pattern):
                raise UserError(f"like: {pattern!r} ends with its escape character")
            found.append(pattern[at])
        else:
            found.append({"%": None, "_": ""}.get(character, character))
        at += 1
    return found


@function("like", _of_text("like", BOOL))
def _like(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    """options: pattern, escape character or None, whether case matters not: then both are taken in lower case."""
    pattern, escape, ignore_case = options
    text = pc.utf8_lower(args[0]) if ignore_case else args[0]
    pieces = like_pieces(pattern, escape)
    if ignore_case:
        pieces = [piece and str(pc.utf8_lower(scalar_of(piece, TEXT))) for piece in pieces]
    plain = "".join(piece for piece in pieces if piece)
    wild = [i for i, piece in enumerate(pieces) if not piece]
    if not wild:
        return pc.equal(text, scalar_of(plain, text.type))
    only_percent = all(pieces[i] is None for i in wild)
    if only_percent and wild == [len(pieces) - 1]:
        return pc.starts_with(text, pattern=plain)
    if only_percent and wild == [0]:
        return pc.ends_with(text, pattern=plain)
    if only_percent and wild == [0, len(pieces) - 1]:
        return pc.match_substring(text, pattern=plain)
    regex = "".join(".*" if piece is None else re.escape(piece) if piece else "." for piece in pieces)
    return pc.match_substring_regex(text, pattern=rf"(?s)\A{regex}\z")


@function("regexp_matches", _of_pattern("regexp_matches", BOOL))
def _regexp_matches(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return pc.match_substring_regex(args[0], pattern=options[0], ignore_case=options[1])


# Arrow cannot replace one match whose context matters: \b, \B
@function("regexp_replace", _of_pattern("regexp_replace", can_fail=True))
def _regexp_replace(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    """options: pattern, replacement, number of matches that are replaced or None."""
    return pc.replace_substring_regex(args[0], pattern=options[0], replacement=options[1], max_replacements=options[2])


_GROUP = re.compile(r"\((?!\?)|\(\?P?<\w+>")


def with_one_group(pattern: str, group: int) -> str:
    """The pattern with one capturing group, `g`: that of this number; 0: the whole. UserError if there is none."""
    if r"\Q" in pattern:
        raise UserError(f"regexp_extract: {pattern!r} has a quoted part", remedy="escape its characters")
    found, count, at = [], 0, 0
    while at < len(pattern):
        if pattern[at] == "\\":
            piece = pattern[at : at + 2]
        elif pattern[at] == "[":
            piece = _character_class(pattern, at)
        elif match := _GROUP.match(pattern, at):
            count += 1
            found.append("(?P<g>" if count == group else "(?:")
            at = match.end()
            continue
        else:
            piece = pattern[at]
        found.append(piece)
        at += len(piece)
    if group > count:
        raise UserError(f"regexp_extract: {pattern!r} has no group {group}")
    return "".join(found) if group else f"(?P<g>{''.join(found)})"


def _character_class(pattern: str, at: int) -> str:
    """From a bracket to the one that closes it; a bracket in first place does not."""
    end = at + 1 + (pattern[at + 1 : at + 2] == "^")
    end += pattern[end : end + 1] == "]"
    while end < len(pattern) and pattern[end] != "]":
        named = pattern[end : end + 2] == "[:"
        end = pattern.find(":]", end) + 2 if named and ":]" in pattern[end:] else end + 1 + (pattern[end] == "\\")
    return pattern[at : end + 1]


def _extract_rule(args: Sequence[Expr], options: Options) -> Signature:
    signature = _of_pattern("regexp_extract")(args, options)
    with_one_group(*options)
    return signature


@function("regexp_extract", _extract_rule)
def _regexp_extract(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    """options: pattern, number of the group. Text that does not match gives ''."""
    found = pc.extract_regex(args[0], pattern=with_one_group(*options))
    part = (
        pc.struct_field(found, ["g"]) if not isinstance(found, pa.Scalar) else pa.scalar(found.as_py() and found.as_py()["g"])
    )
    return pc.if_else(pc.is_valid(args[0]), pc.coalesce(part.cast(kind), scalar_of("", kind)), scalar_of(None, kind))
