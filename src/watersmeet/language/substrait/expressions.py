"""Expressions of a Substrait plan over the columns of a relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.language.substrait.functions import FunctionCall, call_function, fill_template
from watersmeet.language.substrait.types import TypedExpr, format_type, read_literal, refuse_unsupported, spark_type
from watersmeet.plan.expressions import Expr, column, quote
from watersmeet.schema import parse_type

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
        what = other or segment.WhichOneof("kind") or "to nothing"
        raise refuse_unsupported(f"A reference {what}", place, "refer to columns, and to fields of structs, only.")
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
