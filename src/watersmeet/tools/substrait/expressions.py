"""Expressions and functions of a Substrait plan.

Only functions that mean the same in Spark are read, NULLs and errors included. A function is known by its name,
whichever collection declares it: some producers name none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from watersmeet.errors import WatersmeetError, did_you_mean
from watersmeet.logical.expressions import Expr, Op, Reference, column
from watersmeet.schema import INTEGERS, NUMBERS, parse_type, quote
from watersmeet.tools.substrait.types import (
    TypedExpr,
    format_type,
    read_literal,
    refuse_unsupported,
    spark_type,
)


@dataclass(frozen=True)
class FunctionCall:
    """A function call.

    - ``args``: expressions, or the word of an argument that is a choice, such as YEAR
    - ``options``: the accepted values, by the name of the option in small letters
    - ``output``: the type of the result, None if it is not in the plan
    - ``skips_nulls``: the producer's own ``concat`` skips NULLs
    """

    name: str
    args: tuple[TypedExpr | str, ...]
    options: Mapping[str, tuple[str, ...]]
    output: str | None
    place: str
    skips_nulls: bool = False

    def values(self, fewest: int, most: int | None = None) -> tuple[TypedExpr, ...]:
        """The arguments, if there are as many as that and all of them are expressions."""
        expressions = tuple(arg for arg in self.args if isinstance(arg, TypedExpr))
        if len(expressions) < len(self.args) or not fewest <= len(expressions) <= (fewest if most is None else most):
            raise self.refuse(f"with {len(self.args)} arguments of that kind", "")
        return expressions

    def refuse(self, construct: str, reason: str, hint: str = "") -> WatersmeetError:
        """The refusal of the function as it is called here."""
        hint = hint or "compute it in the producer, before the tables that the plan reads."
        return refuse_unsupported(f"The function `{self.name}` {construct}".strip(), self.place, hint, reason)


def call_function(call: FunctionCall) -> TypedExpr:
    """The expression that a call of a function is; refused if Spark has none that means the same.

    >>> column = TypedExpr(Expr("literal", text="1L", value=1), "BIGINT")
    >>> call_function(FunctionCall("add:i64_i64", (column, column), {}, "BIGINT", "plan")).expr.sql()
    '(1L + 1L)'
    """
    name = call.name.split(":")[0].lower()
    if name not in _FUNCTIONS:
        raise call.refuse("", "")
    for option, wanted in call.options.items():
        if not any(value.upper() in _OPTIONS.get(option, ()) for value in wanted):
            reason = f"Spark has no equivalent of {option} = {' or '.join(wanted)}"
            raise call.refuse("", reason, f"leave the option `{option}` out.")
    return _FUNCTIONS[name](call)


_OPTIONS: dict[str, tuple[str, ...]] = {
    "overflow": ("ERROR",), "rounding": ("TIE_TO_EVEN",), "case_sensitivity": ("CASE_SENSITIVE",),
    "char_set": ("UTF8",), "negative_start": ("WRAP_FROM_END",), "division_type": ("TRUNCATE",),
    "on_domain_error": ("ERROR",), "on_division_by_zero": ("ERROR",),
    "null_handling": ("ACCEPT_NULLS", "IGNORE_NULLS"),
}  # fmt: skip
"""The options of functions that match Spark's behaviour; its arithmetic fails rather than wraps."""


def fill_template(template: str, *args: Expr) -> Expr:
    """Text for Spark with expressions in the places of ``{}``.

    >>> fill_template("upper({})", Expr("literal", text="'a'", value="a")).text
    "upper('a')"
    """
    first, *rest = template.split("{}")
    text, refs = first, list[Reference]()
    for arg, after in zip(args, rest, strict=True):
        # A literal never has this character: it would have been escaped.
        head, *tails = arg.sql(lambda _: "\0").split("\0")
        text += head
        for ref, tail in zip(arg.references, tails, strict=True):
            written = ".".join(quote(part) for part in ref.parts)
            refs.append(replace(ref, start=len(text), end=len(text) + len(written)))
            text += written + tail
        text += after
    return Expr("other", text=text, refs=tuple(refs))


def cast_to(value: TypedExpr, type_: str | None) -> TypedExpr:
    """The value cast to that type; unchanged if it already has the type, or if `type_` is None."""
    if type_ is None or value.type == type_:
        return value
    return TypedExpr(Expr("cast", (value.expr,), value=type_), type_)


_Reader = Callable[[FunctionCall], TypedExpr]


def _test(op: Op, count: int, call: FunctionCall, *, negated: bool = False) -> TypedExpr:
    """A comparison or another test of so many values."""
    test = Expr(op, tuple(arg.expr for arg in call.values(count)))
    return TypedExpr(Expr("not", (test,)) if negated else test, "BOOLEAN")


def _logic(op: Op, call: FunctionCall) -> TypedExpr:
    args = call.values(1, len(call.args))
    # Producers nest chains: (a AND b) AND c is read as one conjunction.
    parts = tuple(part for arg in args for part in (arg.expr.args if arg.expr.op == op else (arg.expr,)))
    return TypedExpr(parts[0] if len(parts) == 1 else Expr(op, parts), "BOOLEAN")


def _arithmetic(op: Op, call: FunctionCall) -> TypedExpr:
    args = call.values(2)
    result = Expr(op, tuple(arg.expr for arg in args))
    is_number = call.output is not None and call.output.startswith(NUMBERS)
    # The result has the type of both operands, but for decimals, whose size every engine chooses in its own way.
    is_same = call.output in NUMBERS and all(arg.type == call.output for arg in args)
    return cast_to(TypedExpr(result), call.output) if is_number and not is_same else TypedExpr(result, call.output)


def _divide(call: FunctionCall) -> TypedExpr:
    left, right = call.values(2)
    if call.output is None:
        raise call.refuse("", "the plan does not say whether its result is an integer")
    if call.output in INTEGERS:
        return cast_to(TypedExpr(fill_template("({} DIV {})", left.expr, right.expr), "BIGINT"), call.output)
    is_double = left.type == right.type == call.output == "DOUBLE"
    return cast_to(TypedExpr(Expr("/", (left.expr, right.expr)), "DOUBLE" if is_double else None), call.output)


def _between(call: FunctionCall) -> TypedExpr:
    value, low, high = (arg.expr for arg in call.values(3))
    return TypedExpr(Expr("and", (Expr(">=", (value, low)), Expr("<=", (value, high)))), "BOOLEAN")


def _text(template: str, type_: str | None, call: FunctionCall) -> TypedExpr:
    """A function with a fixed number of arguments that Spark writes so; None: the result has the type of the plan."""
    args = call.values(template.count("{}"))
    result = fill_template(template, *(arg.expr for arg in args))
    return TypedExpr(result, call.output) if type_ is None else cast_to(TypedExpr(result, type_), call.output)


def _many(opening: str, type_: str | None, call: FunctionCall) -> TypedExpr:
    args = call.values(1, len(call.args))
    template = f"{opening}{', '.join('{}' for _ in args)})"
    return TypedExpr(fill_template(template, *(arg.expr for arg in args)), type_ or call.output)


def _concat(call: FunctionCall) -> TypedExpr:
    wanted = [value.upper() for value in call.options.get("null_handling", ())]
    skips = next((value for value in wanted if value in _OPTIONS["null_handling"]), None) == "IGNORE_NULLS"
    if any(arg.type not in ("STRING", None) for arg in call.values(1, len(call.args))):
        raise call.refuse("", "it is supported for strings only")
    return _many("concat_ws('', " if skips or call.skips_nulls else "concat(", "STRING", call)


def _like(word: str, call: FunctionCall) -> TypedExpr:
    value, pattern, *escape = call.values(2, 3)
    has_escape = bool(escape) and not (escape[0].expr.op == "cast" and escape[0].expr.args[0].value is None)
    if not has_escape:
        return TypedExpr(fill_template(f"({{}} {word} {{}})", value.expr, pattern.expr), "BOOLEAN")
    if escape[0].expr.op != "literal":
        raise call.refuse("", "its escape character must be a literal")
    return TypedExpr(
        fill_template(f"({{}} {word} {{}} ESCAPE {{}})", value.expr, pattern.expr, escape[0].expr), "BOOLEAN"
    )


def _substr(call: FunctionCall) -> TypedExpr:
    value, start, *length = call.values(2, 3)
    begin = start.expr.args[0] if start.expr.op == "cast" else start.expr
    if begin.op != "literal" or not isinstance(begin.value, int) or begin.value < 1:
        reason = "engines differ before the first character, so the start must be at least 1"
        raise call.refuse("", reason)
    template = "substring({}, {}, {})" if length else "substring({}, {})"
    # Spark's takes numbers of type INT only.
    numbers = (cast_to(number, "INT").expr for number in (start, *length))
    return TypedExpr(fill_template(template, value.expr, *numbers), "STRING")


_FIELDS = {
    "YEAR": "YEAR", "ISO_YEAR": "YEAROFWEEK", "QUARTER": "QUARTER", "MONTH": "MONTH", "DAY": "DAY", "HOUR": "HOUR",
    "MINUTE": "MINUTE", "SECOND": "SECOND", "DAY_OF_YEAR": "DOY", "DOY": "DOY", "ISO_WEEK": "WEEK", "WEEK": "WEEK",
}  # fmt: skip


def _extract(call: FunctionCall) -> TypedExpr:
    first, *rest = call.args or ("",)
    # Substrait has a choice in the first place, DataFusion a string; days and weeks may say that they count from one.
    word = first if isinstance(first, str) else first.expr.value
    word = word.upper() if isinstance(word, str) else ""
    values = [arg for arg in rest if isinstance(arg, TypedExpr)]
    zeros = [arg for arg in rest if isinstance(arg, str) and arg.upper() != "ONE"]
    if word not in _FIELDS or len(values) != 1 or zeros:
        raise call.refuse(f"of {word or 'an expression that is not a literal'}", "", f"{did_you_mean(word, _FIELDS)}")
    if values[0].type == "TIMESTAMP":
        hint = "cast it to a timestamp without time zone in the producer."
        raise call.refuse("of a timestamp with time zone", "Spark would use the time zone of the session", hint)
    field = fill_template(f"extract({_FIELDS[word]} FROM {{}})", values[0].expr)
    return cast_to(TypedExpr(field, "DECIMAL(8,6)" if word == "SECOND" else "INT"), call.output)


def _negate(call: FunctionCall) -> TypedExpr:
    (value,) = call.values(1)
    return TypedExpr(Expr("negate", (value.expr,)), call.output or value.type)


_TESTS: dict[str, tuple[Op, int]] = {
    "equal": ("=", 2), "not_equal": ("<>", 2), "xor": ("<>", 2), "lt": ("<", 2), "lte": ("<=", 2), "gt": (">", 2),
    "gte": (">=", 2), "is_not_distinct_from": ("<=>", 2), "not": ("not", 1), "is_null": ("is_null", 1),
}  # fmt: skip
_ARITHMETIC: dict[str, Op] = {"add": "+", "subtract": "-", "multiply": "*", "modulus": "%", "modulo": "%"}
_TEXTS: dict[str, tuple[str, str | None]] = {
    "is_true": ("({} IS TRUE)", "BOOLEAN"), "is_not_true": ("({} IS NOT TRUE)", "BOOLEAN"),
    "is_false": ("({} IS FALSE)", "BOOLEAN"), "is_not_false": ("({} IS NOT FALSE)", "BOOLEAN"),
    "abs": ("abs({})", None), "nullif": ("nullif({}, {})", None), "upper": ("upper({})", "STRING"),
    "lower": ("lower({})", "STRING"), "trim": ("trim({})", "STRING"), "btrim": ("trim({})", "STRING"),
    "ltrim": ("ltrim({})", "STRING"), "rtrim": ("rtrim({})", "STRING"), "char_length": ("char_length({})", "INT"),
    "character_length": ("char_length({})", "INT"), "replace": ("replace({}, {}, {})", "STRING"),
    "contains": ("contains({}, {})", "BOOLEAN"), "starts_with": ("startswith({}, {})", "BOOLEAN"),
    "ends_with": ("endswith({}, {})", "BOOLEAN"),
}  # fmt: skip
_FUNCTIONS: dict[str, _Reader] = {
    **{name: partial(_test, *said) for name, said in _TESTS.items()},
    **{name: partial(_arithmetic, op) for name, op in _ARITHMETIC.items()},
    **{name: partial(_text, *said) for name, said in _TEXTS.items()},
    "is_distinct_from": partial(_test, "<=>", 2, negated=True), "between": _between, "and": partial(_logic, "and"),
    "or": partial(_logic, "or"), "is_not_null": partial(_test, "is_null", 1, negated=True), "divide": _divide,
    "negate": _negate, "coalesce": partial(_many, "coalesce(", None), "like": partial(_like, "LIKE"),
    "ilike": partial(_like, "ILIKE"), "substring": _substr, "concat": _concat,
    "str_concat": partial(_many, "concat(", "STRING"), "extract": _extract, "date_part": _extract,
}  # fmt: skip


_HINTS = {
    "subquery": "write it as a join: producers do so for EXISTS and IN if they optimize the plan.",
    "window_function": "compute it in the producer: a table that changes has no order of rows.",
}


@dataclass(frozen=True)
class Expressions:
    """Reads expressions: ``functions`` are the names that the plan declares, by number."""

    functions: Mapping[int, str]
    producer: str

    def read(self, expression: Any, columns: Sequence[TypedExpr], place: str) -> TypedExpr:
        """The expression over the columns, which it names by their position."""
        kind = expression.WhichOneof("kind")
        match kind:
            case "literal":
                return read_literal(expression.literal, place)
            case "selection":
                return read_selection(expression.selection, columns, place)
            case "scalar_function":
                return self._call(expression.scalar_function, columns, place)
            case "cast":
                return self._cast(expression.cast, columns, place)
            case "if_then":
                return self._if_then(expression.if_then, columns, place)
            case "switch_expression":
                return self._switch(expression.switch_expression, columns, place)
            case "singular_or_list":
                return self._one_of(expression.singular_or_list, columns, place)
            case _:
                hint = _HINTS.get(kind or "", "compute it in the producer, before the tables that the plan reads.")
                raise refuse_unsupported(f"An expression {kind or 'of an unknown kind'}", place, hint)

    def _call(self, call: Any, columns: Sequence[TypedExpr], place: str) -> TypedExpr:
        name = self.functions.get(call.function_reference)
        if name is None:
            hint = "write the plan again: `extensions` must declare every function."
            raise refuse_unsupported(f"The undeclared function {call.function_reference}", place, hint)
        args: list[TypedExpr | str] = [self.read(arg, columns, place) for arg in call.args]
        for argument in call.arguments:
            if argument.WhichOneof("kind") == "enum":
                args.append(argument.enum)
            elif argument.WhichOneof("kind") == "value":
                args.append(self.read(argument.value, columns, place))
        options = {option.name.lower(): tuple(option.preference) for option in call.options}
        output = spark_type(call.output_type, place) if call.HasField("output_type") else None
        return call_function(FunctionCall(name, tuple(args), options, output, place, self.producer == "datafusion"))

    def _cast(self, cast: Any, columns: Sequence[TypedExpr], place: str) -> TypedExpr:
        value, type_ = self.read(cast.input, columns, place), spark_type(cast.type, place)
        if value.type == type_:
            return value
        returns_null = 1
        if cast.failure_behavior == returns_null:
            return TypedExpr(fill_template(f"try_cast({{}} AS {type_})", value.expr), type_)
        return TypedExpr(Expr("cast", (value.expr,), value=type_), type_)

    def _if_then(self, case: Any, columns: Sequence[TypedExpr], place: str) -> TypedExpr:
        clauses = [(getattr(clause, "if"), clause.then) for clause in case.ifs]
        if clauses and not case.ifs[0].HasField("then"):
            # DataFusion writes `CASE x WHEN ...` so: the first clause has the value that the others are compared with.
            base = self.read(clauses[0][0], columns, place)
            return self._case(base, clauses[1:], case, columns, place)
        return self._case(None, clauses, case, columns, place)

    def _switch(self, switch: Any, columns: Sequence[TypedExpr], place: str) -> TypedExpr:
        base = self.read(switch.match, columns, place)
        return self._case(base, [(getattr(c, "if"), c.then) for c in switch.ifs], switch, columns, place)

    def _case(
        self,
        base: TypedExpr | None,
        clauses: list[tuple[Any, Any]],
        case: Any,
        columns: Sequence[TypedExpr],
        place: str,
    ) -> TypedExpr:
        if not clauses:
            raise refuse_unsupported("A choice between no values", place, "write the plan again with its producer.")
        template, parts = "CASE", list[TypedExpr]()
        if base is not None:
            template, parts = "CASE {}", [base]
        for when, then in clauses:
            # The values of a switch are bare literals.
            is_literal = when.DESCRIPTOR.name == "Literal"
            test = read_literal(when, place) if is_literal else self.read(when, columns, place)
            parts += [test, self.read(then, columns, place)]
            template += " WHEN {} THEN {}"
        type_ = parts[-1].type
        if case.HasField("else"):
            parts.append(self.read(getattr(case, "else"), columns, place))
            template += " ELSE {}"
        return TypedExpr(fill_template(f"{template} END", *(part.expr for part in parts)), type_)

    def _one_of(self, test: Any, columns: Sequence[TypedExpr], place: str) -> TypedExpr:
        value = self.read(test.value, columns, place).expr
        tests = tuple(Expr("=", (value, self.read(option, columns, place).expr)) for option in test.options)
        if not tests:
            raise refuse_unsupported("A choice between no values", place, "write the plan again with its producer.")
        return TypedExpr(tests[0] if len(tests) == 1 else Expr("or", tests), "BOOLEAN")


def read_selection(selection: Any, columns: Sequence[TypedExpr], place: str) -> TypedExpr:
    """The column, or the field inside one, that a reference names by position."""
    names = ("masked_reference", "expression", "outer_reference", "lambda_parameter_reference")
    other = next((name for name in names if selection.HasField(name)), None)
    segment = selection.direct_reference
    if other is not None or segment.WhichOneof("kind") != "struct_field":
        target = other or segment.WhichOneof("kind") or "to nothing"
        raise refuse_unsupported(f"A reference {target}", place, "refer to columns, and to fields of structs, only.")
    number: int = segment.struct_field.field
    if not 0 <= number < len(columns):
        hint = "write the plan again with its producer."
        raise refuse_unsupported(f"A reference to column {number} where there are {len(columns)}", place, hint)
    value: TypedExpr = columns[number]
    while segment.struct_field.HasField("child"):
        segment = segment.struct_field.child
        if segment.WhichOneof("kind") != "struct_field":
            hint = "refer to columns, and to fields of structs, only."
            raise refuse_unsupported(f"A reference {segment.WhichOneof('kind')}", place, hint)
        value = _field(value, segment.struct_field.field, place)
    return value


def _field(value: TypedExpr, number: int, place: str) -> TypedExpr:
    kind = parse_type(value.type) if value.type is not None else None
    if kind is None or kind.name != "STRUCT" or not 0 <= number < len(kind.parts):
        hint = "write the plan again with its producer."
        raise refuse_unsupported(f"A reference to field {number} of a value without that field", place, hint)
    part = kind.parts[number]
    if value.expr.op == "column":
        return TypedExpr(column((*value.expr.refs[0].parts, part.name)), format_type(part.type))
    return TypedExpr(fill_template(f"({{}}).{quote(part.name)}", value.expr), format_type(part.type))
