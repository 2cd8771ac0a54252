"""Expressions as the user wrote them, with as much structure as the analysis needs.

Spark evaluates expressions, so their text is kept and only references to columns are replaced in it. The structure
(`op` and `args`) covers what Watersmeet itself must understand: boolean logic, comparisons, arithmetic, casts,
literals. Whatever else there is (functions, CASE) is ``other``: text with the references found in it.

Also here: the event-time windows of a time, as an array, for sources in ``TABLE(HOP(...))``. Windows are counted by
their distance from one that begins at or before the time, as Spark counts them from 1970: one form for TUMBLE, HOP and
CUMULATE. The SQL is exact for TIMESTAMP and TIMESTAMP_NTZ in every time zone: ``make_interval`` adds seconds, where an
INTERVAL of a day would add a calendar day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

from watersmeet.catalog import NOWHERE, Amount, Span
from watersmeet.duration import format_duration
from watersmeet.operators.core.aggregates import LIST, NAMES, function_of
from watersmeet.operators.core.condition import Windows, windows_of
from watersmeet.schema import quote


def windows_sql(time: str, windows: Windows) -> str:
    """Spark SQL for the windows of a time, which is SQL itself. It is part of identities: states are found by it.

    >>> windows_sql("t", windows_of("TUMBLE", (60_000_000,)))
    "array(window(t, '60000000 microseconds'))"
    """
    base = f"window({time}, '{windows.base} microseconds')"
    if windows.number == 1:
        return f"array({base})"
    bounds = ((0, windows.start), (windows.first_end, windows.end))
    start, end = (f"{base}.start + make_interval(0, 0, 0, 0, 0, 0, {_seconds(*bound)})" for bound in bounds)
    each = f"n -> named_struct('start', {start}, 'end', {end})"
    return f"filter(transform(sequence(0, {windows.number - 1}), {each}), w -> w.end > {time})"


def _seconds(first: int, each: int) -> str:
    return f"{_decimal(first)} + n * {_decimal(each)}"


def _decimal(micros: int) -> str:
    sign, size = ("-" if micros < 0 else ""), abs(micros)
    return f"{sign}{size // 1_000_000}.{size % 1_000_000:06d}"


Op = Literal[
    "column", "literal", "interval",
    "and", "or", "not", "is_null",
    "=", "<=>", "<>", "<", "<=", ">", ">=",
    "+", "-", "*", "/", "%", "negate",
    "cast", "call", "aggregate", "order", "over", "around", "windows", "subquery", "other",
]  # fmt: skip
"""The kind of an expression. An interval holds microseconds, a cast the type as its value; BETWEEN is read as two
comparisons, IN as equalities; an AND or OR whose value is `CLOSED` was written in brackets or as BETWEEN, that of IN is
`LISTED`, and resolving leaves or makes it so where Spark may be told of a list. An
aggregate is a call of `AGGREGATES` (its name in ``text``, in small letters; ``value`` is "distinct" for DISTINCT, and
`FILTERED` where the last arg is the condition of FILTER, `EACH` where it gives an array of percentiles; ``count(*)``
has no args; behind the others stand sort keys, each an ``order`` with its direction as ``text``); a call is a function
with an aggregate somewhere in its args, so that these can be told from the rest. ``around`` is any other text with
aggregates in it, CASE for example: its args one behind the other, of which the aggregates are expressions and the
others pieces of text. ``over`` is a window function (`WindowCall`). ``windows`` are those that a time lies in, as an
array: its args are the time and the lengths, as intervals, of the function in ``text``. A ``subquery`` is IN or EXISTS
of a query while its WHERE is being read. Every
other function is ``other``."""

OTHER_AGGREGATES = frozenset({
    "approx_count_distinct", "approx_percentile", "approx_top_k", "bitmap_and_agg", "bitmap_construct_agg",
    "bitmap_or_agg", "corr", "count_min_sketch", "covar_pop", "covar_samp", "histogram_numeric", "hll_sketch_agg",
    "hll_union_agg", "kurtosis", "mode", "percentile_approx", "product", "regr_avgx", "regr_avgy", "regr_count",
    "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "schema_of_variant_agg", "skewness",
    "theta_intersection_agg", "theta_sketch_agg", "theta_union_agg", "try_avg", "try_sum",
})  # fmt: skip
"""Aggregate functions of Spark that no query may use: each is refused at its place, and never read as another one."""

AGGREGATES = OTHER_AGGREGATES | {name for name in NAMES if name.isidentifier()}
"""The names of all aggregate functions in SQL: those of a grouping, and those that are refused."""

CLOSED = "closed"
"""The value of an AND or OR whose parts the text itself holds together, so that there is one way to read it."""

LISTED = "listed"
"""The value of an OR of equalities of one value. Once resolved, Spark's IN is known to mean the same; or it was
written, over constants of one kind and a value whose type only Spark knows."""

FILTERED = "filtered"
"""The value of an aggregate whose last arg says which rows it sees."""

EACH = LIST.strip()
"""The value of an aggregate that gives an array, a percentile for each fraction."""

IGNORES_NULLS = "ignore nulls"
"""The value of LAG and LEAD that count only the rows whose value is not NULL."""

SORTS = {(False, False): "", (False, True): "NULLS LAST", (True, True): "DESC", (True, False): "DESC NULLS FIRST"}
"""The directions of a sort key as text, by whether it is descending, and whether NULLs come last."""

_WITHIN_GROUP = ("percentile_cont", "percentile_disc")
"""Functions whose argument is what WITHIN GROUP orders by."""

COMPARISONS = frozenset({"=", "<=>", "<>", "<", "<=", ">", ">="})
ARITHMETIC = frozenset({"+", "-", "*", "/", "%"})

Value = int | float | Decimal | str | bool | None

GROUP = "#group"
"""The source of what a grouping gives: a reference to it has this as its ``source``."""
_FIELD = re.compile(r"\.(\w+)")


@dataclass(frozen=True)
class Reference:
    """A column named in a text: ``parts`` as written, at ``start`` to ``end`` of the expression's own text.

    `resolve` fills in the rest: the alias of the source, the column and the path of fields inside it. ``span`` is the
    place of the name in the script, where the text around it was written elsewhere.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    source: str = ""
    name: str = ""
    path: tuple[str, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def column(self) -> str:
        """The name of the column in every frame past the source: ``alias.column``."""
        return f"{self.source}.{self.name}"


@dataclass(frozen=True)
class Expr:
    """One expression.

    Leaves (`column`, `literal`, `interval`, `other`) carry their text and, relative to it, the references in it; the
    others are made of `args`. ``span`` is the place in the script that an error would point at.
    """

    op: Op
    args: tuple[Expr, ...] = ()
    text: str = ""
    refs: tuple[Reference, ...] = ()
    value: Value = None
    span: Span = NOWHERE

    @property
    def function(self) -> str:
        """The name under which the functions of groups have an aggregate: one of which equals count once is another.

        >>> Expr("aggregate", text="count", value="distinct").function
        'count distinct'
        """
        return f"{self.text} {self.value}" if self.value in ("distinct", FILTERED, EACH, IGNORES_NULLS) else self.text

    @property
    def sort_keys(self) -> tuple[Expr, ...]:
        """The sort keys by which an aggregate orders the rows of a group."""
        return tuple(arg for arg in self.args if arg.op == "order")

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """The args of an aggregate that are values of rows, without constants and sort keys.

        >>> x, dash = (Expr("literal", text=text) for text in ("1", "'-'"))
        >>> [arg.text for arg in Expr("aggregate", (x, dash), "listagg").arguments]
        ['1']
        """
        plain = tuple(arg for arg in self.args if arg.op != "order")
        has_constants = self.function in NAMES and function_of(self.function).has_constants
        return plain[:1] if has_constants else plain

    @property
    def inputs(self) -> tuple[Expr, ...]:
        """All that an aggregate reads of a row: its arguments, and what it orders rows by."""
        return (*self.arguments, *(key.args[0] for key in self.sort_keys))

    @property
    def references(self) -> Iterator[Reference]:
        """All references in it, in reading order."""
        yield from self.refs
        for arg in self.args:
            yield from arg.references

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Its args; of a list the one value and the members, which are as many as there are args."""
        if self.op == "or" and self.value == LISTED:
            return (self.args[0].args[0], *(test.args[1] for test in self.args))
        return self.args

    @property
    def sources(self) -> frozenset[str]:
        """The aliases it mentions, once resolved."""
        return frozenset(ref.source for ref in self.references)

    def map_references(self, change: Callable[[Reference], Reference]) -> Expr:
        """The same expression with every reference replaced by ``change(reference)``."""
        return replace(
            self,
            refs=tuple(change(ref) for ref in self.refs),
            args=tuple(arg.map_references(change) for arg in self.args),
        )

    def sql(self, name: Callable[[Reference], str] = lambda ref: quote(ref.column)) -> str:  # noqa: PLR0911 - one case per kind of expression
        """Spark SQL for it, every reference written as ``name`` says (fields of a path follow it)."""
        match self.op:
            case "column" | "literal" | "interval" | "other":
                return _splice(self.text, self.refs, name)
            case "not":
                return f"(NOT {self.args[0].sql(name)})"
            case "negate":
                return f"(- {self.args[0].sql(name)})"
            case "is_null":
                return f"({self.args[0].sql(name)} IS NULL)"
            case "cast":
                return f"CAST({self.args[0].sql(name)} AS {self.value})"
            case "aggregate" | "over":
                return spell_aggregate(self, lambda arg: arg.sql(name))
            case "call":
                return f"{self.text}({', '.join(arg.sql(name) for arg in self.args)})"
            case "order":
                return f"{self.args[0].sql(name)} {self.text}".rstrip()
            case "around":
                return "".join(arg.sql(name) for arg in self.args)
            case "windows":
                return windows_sql(self.args[0].sql(name), windows_in(self))
            case "or" if self.value == LISTED:
                # Spark takes minutes for thousands of equalities, and a moment for a list of as many values.
                members = ", ".join(arg.args[1].sql(name) for arg in self.args)
                return f"({self.args[0].args[0].sql(name)} IN ({members}))"
            case _:
                return "(" + f" {self.op.upper()} ".join(arg.sql(name) for arg in self.args) + ")"


def spell_aggregate(call: Expr, spell: Callable[[Expr], str]) -> str:
    """An aggregate or a window function as SQL, its args as ``spell`` writes them.

    >>> t = Expr("order", (Expr("literal", text="t"),), "DESC")
    >>> spell_aggregate(Expr("aggregate", (Expr("literal", text="x"), t), "array_agg"), Expr.sql)
    'array_agg(x ORDER BY t DESC)'
    """
    if call.op == "over":
        return _spell_window_call(WindowCall.of(call), spell)
    args = [spell(arg) for arg in call.args if arg.op != "order"]
    condition = f" FILTER (WHERE {args.pop()})" if call.value == FILTERED else ""
    keys = ", ".join(spell(key) for key in call.sort_keys)
    if call.text in _WITHIN_GROUP:
        return f"{call.text}({args[1]}) WITHIN GROUP (ORDER BY {keys or args[0]}){condition}"
    inside = ", ".join(args) or ("*" if call.text == "count" else "")
    if keys and call.text in ("listagg", "string_agg"):
        condition, keys = f" WITHIN GROUP (ORDER BY {keys}){condition}", ""
    distinct = "DISTINCT " if call.value == "distinct" else ""
    return f"{call.text}({distinct}{inside}{f' ORDER BY {keys}' if keys else ''}){condition}"


OFFSETS = frozenset({"lag", "lead"})
"""The window functions that give a value of another row, and have no frame."""

RANKS = frozenset({"row_number", "rank", "dense_rank"})
"""The window functions that give the place of a row in the order, as a whole number from 1 on."""

WINDOW_FUNCTIONS = OFFSETS | {
    "count", "count_if", "sum", "avg", "mean", "min", "max", "first", "first_value", "last", "last_value",
}  # fmt: skip
"""The functions that may stand before OVER, besides ranks."""


NO_ROWS = Amount(0, is_interval=False)
"""The end of a frame at the current row."""


@dataclass(frozen=True)
class WindowCall:
    """A window function: ``function(arguments) OVER (PARTITION BY by ORDER BY order frame)``.

    - ``call``: the aggregate before OVER; of `OFFSETS`, a call without their offset
    - ``order``: sort keys, each an ``order``
    - ``unit``: what the frame is counted in; empty for a function of `OFFSETS`
    - ``preceding``: how far the frame reaches back; None: to the first row. Of `OFFSETS`, which row it is
    - ``following``: how far the frame reaches ahead, less than zero if it ends before; None: to the last row

    >>> v, t, k = (Expr("literal", text=text) for text in "vtk")
    >>> call = WindowCall(Expr("aggregate", (v,), "sum"), (k,), (Expr("order", (t,)),), "ROWS", Amount(2, False))
    >>> call.as_expr(NOWHERE).sql()
    'sum(v) OVER (PARTITION BY k ORDER BY t ROWS 2 PRECEDING)'
    """

    call: Expr
    by: tuple[Expr, ...]
    order: tuple[Expr, ...]
    unit: Literal["ROWS", "RANGE", ""]
    preceding: Amount | None
    following: Amount | None = NO_ROWS

    @staticmethod
    def of(over: Expr) -> WindowCall:
        """The parts of an ``over`` expression."""
        count = int(str(over.value))
        begin, end, *others = over.args[count:]
        unit: Literal["ROWS", "RANGE", ""] = (
            "ROWS" if begin.text == "ROWS" else "RANGE" if begin.text == "RANGE" else ""
        )
        name, _, value = over.text.partition(" ")
        is_call = name in OFFSETS or name in RANKS
        call = Expr("call" if is_call else "aggregate", over.args[:count], name, (), value or None, over.span)
        order = tuple(other for other in others if other.op == "order")
        return WindowCall(call, tuple(others[len(order) :]), order, unit, _amount(begin), _amount(end))

    def as_expr(self, span: Span) -> Expr:
        """The ``over`` expression with these parts."""
        begin, end = (
            Expr(
                "interval" if amount is not None and amount.is_interval else "literal", text=self.unit,
                value=None if amount is None else amount.value,
            )
            for amount in (self.preceding, self.following)
        )  # fmt: skip
        args = (*self.call.args, begin, end, *self.order, *self.by)
        return Expr("over", args, self.call.function, value=len(self.call.args), span=span)

    @property
    def value_expr(self) -> Expr:
        """An expression that has the type of its value."""
        name = self.call.text
        if name in RANKS:
            return Expr("literal", text="0", value=0)
        return self.call.args[0] if name in OFFSETS or name.startswith(("first", "last")) else self.call

    @property
    def is_descending(self) -> bool:
        """Whether the only sort key is in descending order."""
        return len(self.order) == 1 and self.order[0].text.startswith("DESC")

    @property
    def function(self) -> str:
        """The function in the order of an event time: LAG from the last row on is LEAD."""
        if self.call.text not in OFFSETS or not self.is_descending:
            return self.call.function
        return self.call.function.replace(*(("lag", "lead") if self.call.text == "lag" else ("lead", "lag")))


def _amount(bound: Expr) -> Amount | None:
    return None if bound.value is None else Amount(int(str(bound.value)), bound.op == "interval")


def _spell_window_call(parts: WindowCall, spell: Callable[[Expr], str]) -> str:
    name = parts.call.text
    if name in RANKS:
        called = f"{name}()"
    elif parts.unit:
        called = spell_aggregate(parts.call, spell)
    else:
        value, *default = (spell(arg) for arg in parts.call.args)
        called = f"{name}({', '.join((value, str(parts.preceding.value if parts.preceding else 1), *default))})"
        called += f" {IGNORES_NULLS.upper()}" if parts.call.value == IGNORES_NULLS else ""
    words = [f"PARTITION BY {', '.join(map(spell, parts.by))}"] if parts.by else []
    words += [f"ORDER BY {', '.join(map(spell, parts.order))}"] if parts.order else []
    words += [_spell_frame(parts)] if name not in RANKS and parts.unit else []
    return f"{called} OVER ({' '.join(word for word in words if word)})"


def _spell_frame(parts: WindowCall) -> str:
    """The frame as SQL; empty for the one that OVER has if it says nothing."""
    begin = _spell_bound(parts.preceding, "PRECEDING", "FOLLOWING")
    if parts.following == NO_ROWS:
        is_default = parts.unit == "RANGE" and parts.preceding is None
        return "" if is_default else f"{parts.unit} {begin}"
    if parts.unit == "RANGE" and parts.preceding is parts.following is None and not parts.order:
        return ""
    return f"{parts.unit} BETWEEN {begin} AND {_spell_bound(parts.following, 'FOLLOWING', 'PRECEDING')}"


def _spell_bound(amount: Amount | None, onward: str, back: str) -> str:
    if amount is None:
        return f"UNBOUNDED {onward}"
    if not amount.value:
        return "CURRENT ROW"
    size = abs(amount.value)
    return (
        f"{f'INTERVAL {format_duration(size)}' if amount.is_interval else size} {onward if amount.value > 0 else back}"
    )


def window_calls_in(expr: Expr) -> tuple[Expr, ...]:
    """The window functions in an expression, outermost only."""
    if expr.op == "over":
        return (expr,)
    return tuple(call for arg in expr.args for call in window_calls_in(arg))


def constants_of(call: Expr) -> tuple[float | str, ...] | None:
    """The constants of an aggregate: the fractions of percentiles, or a separator; None: not what it takes.

    >>> x, many = Expr("literal", text="x"), Expr("other", text="array(0.25, 1)")
    >>> constants_of(Expr("aggregate", (x, many), "percentile", value=EACH))
    (0.25, 1.0)
    """
    if call.function not in NAMES or not function_of(call.function).has_constants:
        return ()
    given = [arg for arg in call.args if arg.op != "order"][1:]
    if call.text == "median":
        return None if given else (0.5,)
    if call.text in ("listagg", "string_agg"):
        return _separator(given)
    if len(given) != 1:
        return None
    numbers = _ARRAY.fullmatch(given[0].text) if given[0].op == "other" else None
    if numbers is not None:
        fractions = [float(number.strip().rstrip("dD")) for number in numbers[1].split(",")]
    elif given[0].op == "literal" and isinstance(given[0].value, int | float | Decimal) and given[0].value is not True:
        fractions = [float(given[0].value)]
    else:
        return None
    return tuple(fractions) if all(0 <= fraction <= 1 for fraction in fractions) else None


_NUMBER = r"\s*(?:\d+\.?\d*|\.\d+)[dD]?\s*"
_ARRAY = re.compile(rf"array\s*\(({_NUMBER}(?:,{_NUMBER})*)\)", re.IGNORECASE)


def _separator(given: list[Expr]) -> tuple[str] | None:
    if not given:
        return ("",)
    is_text = len(given) == 1 and given[0].op == "literal" and isinstance(given[0].value, str | None)
    return (str(given[0].value or ""),) if is_text else None


def finality_column(expr: Expr) -> str | None:
    """The name of the watermark that says which rows are final by an expression; None: it can have none.

    It is a column, or a field of a column of a grouping, whose names are generated.

    >>> w, v = Reference(("w",), 0, 1, GROUP, "w"), Reference(("v",), 0, 1, "s", "v")
    >>> finality_column(Expr("other", text="w.start", refs=(w,))), finality_column(Expr("column", text="v", refs=(v,)))
    ('#group.w.start', 's.v')
    """
    if expr.op not in ("column", "other") or len(expr.refs) != 1 or expr.refs[0].start:
        return None
    (ref,) = expr.refs
    rest = _FIELD.fullmatch(expr.text[ref.end :]) if expr.op == "other" else None
    if expr.op == "other" and rest is None:
        return None
    path = (*ref.path, *(() if rest is None else (rest[1],)))
    return None if path and ref.source != GROUP else ".".join((ref.column, *path))


def windows_in(expr: Expr) -> Windows:
    """The windows that a ``windows`` expression describes."""
    return windows_of(expr.text, tuple(int(length.value or 0) for length in expr.args[1:]))


def conjuncts(expr: Expr | None) -> tuple[Expr, ...]:
    """The parts of an expression that are joined by AND, outermost first to last."""
    if expr is None:
        return ()
    if expr.op == "and":
        return tuple(part for arg in expr.args for part in conjuncts(arg))
    return (expr,)


def all_of(parts: Sequence[Expr]) -> Expr | None:
    """The condition that all of these hold; None for none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return Expr("and", tuple(parts), span=parts[0].span.to(parts[-1].span))


def aggregates_in(expr: Expr) -> tuple[Expr, ...]:
    """The aggregates in an expression, outermost only.

    >>> count = Expr("aggregate", text="count")
    >>> [call.sql() for call in aggregates_in(Expr("+", (count, Expr("literal", text="1", value=1))))]
    ['count(*)']
    """
    if expr.op == "aggregate":
        return (expr,)
    return tuple(call for arg in expr.args for call in aggregates_in(arg))


def alternative(expr: Expr) -> Expr | None:
    """An OR parsed as if OR bound more tightly than AND; None if none of its parts is an open AND.

    >>> a, b, c = (column((name,)) for name in "abc")
    >>> read = alternative(Expr("or", (Expr("and", (a, b)), c)))
    >>> read.sql(lambda ref: ref.parts[0]) if read else None
    '(a AND (b OR c))'
    >>> alternative(Expr("or", (Expr("and", (a, b), value=CLOSED), c)))
    """
    if expr.op != "or" or not any(_is_open_and(part) for part in expr.args):
        return None
    groups: list[list[Expr]] = [[]]
    for part in expr.args:
        first, *others = part.args if _is_open_and(part) else (part,)
        groups[-1].append(first)
        groups += [[other] for other in others]
    return Expr("and", tuple(_any_of(group) for group in groups), span=expr.span)


def _is_open_and(expr: Expr) -> bool:
    return expr.op == "and" and expr.value != CLOSED


def _any_of(parts: list[Expr]) -> Expr:
    return parts[0] if len(parts) == 1 else Expr("or", tuple(parts), span=parts[0].span.to(parts[-1].span))


def column(parts: tuple[str, ...], span: Span = NOWHERE) -> Expr:
    """A reference to a column as an expression."""
    text = ".".join(quote(part) for part in parts)
    return Expr("column", text=text, refs=(Reference(parts, 0, len(text)),), span=span)


def _splice(text: str, refs: tuple[Reference, ...], name: Callable[[Reference], str]) -> str:
    out: list[str] = []
    position = 0
    for ref in sorted(refs, key=lambda r: r.start):
        out += [text[position : ref.start], name(ref), *(f".{quote(part)}" for part in ref.path)]
        position = ref.end
    return "".join(out) + text[position:]
