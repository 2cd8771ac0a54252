"""The messages of a Substrait plan: those parts of its Protocol Buffers that are read, or refused by name.

They are declared here, and not taken from a package of generated code, because producers are years apart: plans with
fields that newer releases of Substrait took out (``left_keys``, ``timestamp``, ``extension_uris``) must be read next to
those that have the fields of today. Numbers and names are Substrait's; a number is never given twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

from watersmeet.errors import refuse

_PACKAGE = "watersmeet.substrait"

_MESSAGES = """
Plan: extension_uris 1 Uri*, extensions 2 Declaration*, relations 3 PlanRel*, advanced_extensions 4 Advanced,
    expected_type_urls 5 string*, version 6 Version, parameter_bindings 7 Opaque*, extension_urns 8 Urn*,
    type_aliases 9 Opaque*, execution_behavior 10 Opaque, named_lambdas 11 Opaque*
Version: major_number 1 uint32, minor_number 2 uint32, patch_number 3 uint32, git_hash 4 string, producer 5 string
Uri: extension_uri_anchor 1 uint32, uri 2 string
Urn: extension_urn_anchor 1 uint32, urn 2 string
Declaration: extension_type 1 Opaque|, extension_type_variation 2 Opaque|, extension_function 3 DeclaredFunction|
DeclaredFunction: extension_uri_reference 1 uint32, function_anchor 2 uint32, name 3 string,
    extension_urn_reference 4 uint32
Advanced: optimization 1 Opaque*, enhancement 2 Opaque
Opaque:

PlanRel: rel 1 Rel|, root 2 Root|, detached_expressions 3 Opaque*, detached_rels 4 Opaque*
Root: input 1 Rel, names 2 string*
Rel: read 1 ReadRel|, filter 2 FilterRel|, fetch 3 Opaque|, aggregate 4 Opaque|, sort 5 Opaque|, join 6 JoinRel|,
    project 7 ProjectRel|, set 8 SetRel|, extension_single 9 Opaque|, extension_multi 10 Opaque|,
    extension_leaf 11 Opaque|, cross 12 CrossRel|, hash_join 13 HashJoinRel|, merge_join 14 MergeJoinRel|,
    exchange 15 Opaque|, expand 16 Opaque|, window 17 Opaque|, nested_loop_join 18 NestedLoopJoinRel|, write 19 Opaque|,
    ddl 20 Opaque|, reference 21 Opaque|, update 22 Opaque|, top_n 23 Opaque|, lateral_join 24 Opaque|,
    detached_rel_ordinal 25 uint32|
Common: direct 1 Opaque|, emit 2 Emit|, hint 3 Opaque, advanced_extension 4 Advanced, rel_anchor 5 uint32
Emit: output_mapping 1 int32*
ReadRel: common 1 Common, base_schema 2 NamedStruct, filter 3 Expression, projection 4 Mask, virtual_table 5 Opaque|,
    local_files 6 Opaque|, named_table 7 NamedTable|, extension_table 8 Opaque|, iceberg_table 9 Opaque|,
    advanced_extension 10 Advanced, best_effort_filter 11 Opaque
NamedTable: names 1 string*, advanced_extension 10 Advanced
NamedStruct: names 1 string*, struct 2 Struct
Mask: select 1 StructSelect, maintain_singular_struct 2 bool
StructSelect: struct_items 1 StructItem*
StructItem: field 1 int32, child 2 Opaque
FilterRel: common 1 Common, input 2 Rel, condition 3 Expression, advanced_extension 10 Advanced
ProjectRel: common 1 Common, input 2 Rel, expressions 3 Expression*, advanced_extension 10 Advanced
SetRel: common 1 Common, inputs 2 Rel*, op 3 SetOp, advanced_extension 10 Advanced
CrossRel: common 1 Common, left 2 Rel, right 3 Rel, advanced_extension 10 Advanced
JoinRel: common 1 Common, left 2 Rel, right 3 Rel, expression 4 Expression, post_join_filter 5 Expression,
    type 6 JoinType, advanced_extension 10 Advanced
NestedLoopJoinRel: common 1 Common, left 2 Rel, right 3 Rel, expression 4 Expression, type 5 PhysicalJoinType,
    advanced_extension 10 Advanced
HashJoinRel: common 1 Common, left 2 Rel, right 3 Rel, left_keys 4 Selection*, right_keys 5 Selection*,
    post_join_filter 6 Expression, type 7 PhysicalJoinType, keys 8 JoinKey*, build_input 9 BuildInput,
    advanced_extension 10 Advanced, residual_expression 11 Expression
MergeJoinRel: common 1 Common, left 2 Rel, right 3 Rel, left_keys 4 Selection*, right_keys 5 Selection*,
    post_join_filter 6 Expression, type 7 PhysicalJoinType, keys 8 JoinKey*, residual_expression 9 Expression,
    advanced_extension 10 Advanced
JoinKey: left 1 Selection, right 2 Selection, comparison 3 Comparison
Comparison: simple 1 SimpleComparison|, custom_function_reference 2 uint32|

Expression: literal 1 Literal|, selection 2 Selection|, scalar_function 3 ScalarFunction|, window_function 5 Opaque|,
    if_then 6 IfThen|, switch_expression 7 Switch|, singular_or_list 8 SingularOrList|, multi_or_list 9 Opaque|,
    enum 10 Opaque|, cast 11 Cast|, subquery 12 Opaque|, nested 13 Opaque|, dynamic_parameter 14 Opaque|,
    lambda 15 Opaque|, lambda_invocation 16 Opaque|, execution_context_variable 17 Opaque|,
    detached_expression_ordinal 18 uint32|, named_lambda_reference 19 Opaque|
Selection: direct_reference 1 Segment, masked_reference 2 Opaque, expression 3 Opaque, root_reference 4 Opaque,
    outer_reference 5 Opaque, lambda_parameter_reference 6 Opaque
Segment: map_key 1 Opaque|, struct_field 2 StructField|, list_element 3 Opaque|
StructField: field 1 int32, child 2 Segment
ScalarFunction: function_reference 1 uint32, args 2 Expression*, output_type 3 Type, arguments 4 Argument*,
    options 5 Option*
Argument: enum 1 string|, type 2 Type|, value 3 Expression|
Option: name 1 string, preference 2 string*
IfThen: ifs 1 IfClause*, else 2 Expression
IfClause: if 1 Expression, then 2 Expression
Switch: ifs 1 IfValue*, else 2 Expression, match 3 Expression
IfValue: if 1 Literal, then 2 Expression
SingularOrList: value 1 Expression, options 2 Expression*
Cast: type 1 Type, input 2 Expression, failure_behavior 3 FailureBehavior
Literal: boolean 1 bool|, i8 2 int32|, i16 3 int32|, i32 5 int32|, i64 7 int64|, fp32 10 float|, fp64 11 double|,
    string 12 string|, binary 13 bytes|, timestamp 14 int64|, date 16 int32|, time 17 int64|,
    interval_year_to_month 19 YearToMonth|, interval_day_to_second 20 DayToSecond|, fixed_char 21 string|,
    var_char 22 VarCharValue|, fixed_binary 23 bytes|, decimal 24 DecimalValue|, struct 25 Opaque|, map 26 Opaque|,
    timestamp_tz 27 int64|, uuid 28 bytes|, null 29 Type|, list 30 Opaque|, empty_list 31 Opaque|, empty_map 32 Opaque|,
    user_defined 33 Opaque|, precision_timestamp 34 TimestampValue|, precision_timestamp_tz 35 TimestampValue|,
    interval_compound 36 Compound|, precision_time 37 TimestampValue|, nullable 50 bool,
    type_variation_reference 51 uint32
VarCharValue: value 1 string, length 2 uint32
DecimalValue: value 1 bytes, precision 2 int32, scale 3 int32
TimestampValue: precision 1 int32, value 2 int64
YearToMonth: years 1 int32, months 2 int32
DayToSecond: days 1 int32, seconds 2 int32, microseconds 3 int32|, precision 4 int32|, subseconds 5 int64
Compound: interval_year_to_month 1 YearToMonth, interval_day_to_second 2 DayToSecond

Type: bool 1 Plain|, i8 2 Plain|, i16 3 Plain|, i32 5 Plain|, i64 7 Plain|, fp32 10 Plain|, fp64 11 Plain|,
    string 12 Plain|, binary 13 Plain|, timestamp 14 Plain|, date 16 Plain|, time 17 Plain|, interval_year 19 Plain|,
    interval_day 20 Interval|, fixed_char 21 Sized|, varchar 22 Sized|, fixed_binary 23 Sized|, decimal 24 Decimal|,
    struct 25 Struct|, list 27 List|, map 28 Map|, timestamp_tz 29 Plain|, user_defined 30 Opaque|,
    user_defined_type_reference 31 uint32|, uuid 32 Plain|, precision_timestamp 33 Precise|,
    precision_timestamp_tz 34 Precise|, interval_compound 35 Interval|, precision_time 36 Precise|, alias 37 Opaque|,
    func 38 Opaque|, unbound 39 Opaque|
Plain: type_variation_reference 1 uint32, nullability 2 Nullability
Interval: type_variation_reference 1 uint32, nullability 2 Nullability, precision 3 int32
Sized: length 1 int32, type_variation_reference 2 uint32, nullability 3 Nullability
Precise: precision 1 int32, type_variation_reference 2 uint32, nullability 3 Nullability
Decimal: scale 1 int32, precision 2 int32, type_variation_reference 3 uint32, nullability 4 Nullability
Struct: types 1 Type*, type_variation_reference 2 uint32, nullability 3 Nullability
List: type 1 Type, type_variation_reference 2 uint32, nullability 3 Nullability
Map: key 1 Type, value 2 Type, type_variation_reference 3 uint32, nullability 4 Nullability
"""
"""A message per line, its fields as ``name number type``: ``*`` for repeated, ``|`` for members of a oneof."""

_ENUMS = """
Nullability: NULLABILITY_ UNSPECIFIED 0, NULLABLE 1, REQUIRED 2
FailureBehavior: FAILURE_BEHAVIOR_ UNSPECIFIED 0, RETURN_NULL 1, THROW_EXCEPTION 2
SetOp: SET_OP_ UNSPECIFIED 0, MINUS_PRIMARY 1, MINUS_MULTISET 2, INTERSECTION_PRIMARY 3, INTERSECTION_MULTISET 4,
    UNION_DISTINCT 5, UNION_ALL 6, MINUS_PRIMARY_ALL 7, INTERSECTION_MULTISET_ALL 8
JoinType: JOIN_TYPE_ UNSPECIFIED 0, INNER 1, OUTER 2, LEFT 3, RIGHT 4, LEFT_SEMI 5, LEFT_ANTI 6, LEFT_SINGLE 7,
    RIGHT_SEMI 8, RIGHT_ANTI 9, RIGHT_SINGLE 10, LEFT_MARK 11, RIGHT_MARK 12, SEMI 5, ANTI 6, SINGLE 7
PhysicalJoinType: JOIN_TYPE_ UNSPECIFIED 0, INNER 1, OUTER 2, LEFT 3, RIGHT 4, LEFT_SEMI 5, RIGHT_SEMI 6, LEFT_ANTI 7,
    RIGHT_ANTI 8, LEFT_SINGLE 9, RIGHT_SINGLE 10, LEFT_MARK 11, RIGHT_MARK 12
BuildInput: BUILD_INPUT_ UNSPECIFIED 0, LEFT 1, RIGHT 2
SimpleComparison: SIMPLE_COMPARISON_TYPE_ UNSPECIFIED 0, EQ 1, IS_NOT_DISTINCT_FROM 2, MIGHT_EQUAL 3
"""
"""An enumeration per line: the prefix of its values, then each with its number. Later names of a number are older."""

_SCALARS = {
    "double": 1, "float": 2, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13,
}  # fmt: skip
"""The numbers that a descriptor gives to the types of fields."""

_MESSAGE, _ENUM = 11, 14
_OPTIONAL, _REPEATED = 1, 3


def decode_plan(plan: bytes | str, name: str) -> Any:
    """The message of a plan, from its bytes or from its JSON; refused if it is neither.

    >>> decode_plan('{"version": {"producer": "by hand"}}', "example").version.producer
    'by hand'
    """
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        raise refuse("SUBSTRAIT_NOT_INSTALLED", package="protobuf")
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.message import DecodeError

    message = _plan_class()()
    # The first byte of a plan is the key of one of its fields, and none has a key that reads as a brace.
    is_json = isinstance(plan, str) or plan.lstrip()[:1] == b"{"
    try:
        if is_json:
            written = json.loads(plan)
            ParseDict(written, message, ignore_unknown_fields=True)
            unknown = next(_unknown_keys(written, message.DESCRIPTOR, "the plan"), None)
        else:
            message.ParseFromString(plan)
            unknown = next(_unknown_numbers(message, "the plan"), None)
    except (DecodeError, ParseError, ValueError, RecursionError) as error:
        reason = f"as {'JSON' if is_json else 'Protocol Buffers'} it is damaged ({_first(error)})"
        hint = "write the plan again with its producer."
        if isinstance(error, RecursionError) or "depth" in str(error).lower():
            reason = "it is nested deeper than the 100 messages that Protocol Buffers allow"
            hint = "chain no more than 30 conditions or terms in one expression: a list (IN) counts as one."
        raise refuse("WRONG_SUBSTRAIT", plan=name, reason=reason, hint=hint) from None
    if unknown is not None:
        hint = "write the plan for an older version of Substrait: unknown fields cannot be interpreted."
        raise refuse("WRONG_SUBSTRAIT", plan=name, reason=f"{unknown} is not a known field", hint=hint)
    return message


def _first(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__


def _unknown_numbers(message: Any, name: str) -> Iterator[str]:
    """Fields that the producer set and that are not declared here; all are, inside opaque messages."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    if message.DESCRIPTOR.name == "Opaque":
        return
    for field in UnknownFieldSet(message):
        yield f"number {field.field_number} of {name}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from _unknown_numbers(part, field.name)


def _unknown_keys(written: Any, descriptor: Any, name: str) -> Iterator[str]:
    """The same for JSON, which spells a field in one of two ways."""
    if descriptor.name == "Opaque" or not isinstance(written, dict):
        return
    fields = {spelling: field for field in descriptor.fields for spelling in (field.name, field.json_name)}
    for key, value in cast("dict[str, Any]", written).items():
        if key not in fields:
            yield f"`{key}` of {name}"
        elif fields[key].message_type is not None:
            for part in cast("list[Any]", value) if isinstance(value, list) else [value]:
                yield from _unknown_keys(part, fields[key].message_type, key)


@cache
def _plan_class() -> Any:
    """The class of the message Plan, in a pool of its own: another package may have declared Substrait as well."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name="watersmeet/substrait.proto", package=_PACKAGE, syntax="proto3")
    enums = _lines(_ENUMS)
    for name, values in enums.items():
        _declare_enum(file, name, values)
    for name, fields in _lines(_MESSAGES).items():
        _declare_message(file, name, fields, frozenset(enums))
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Plan"))


def _lines(text: str) -> dict[str, str]:
    """The text after the colon, by the name before it; an indented line continues the one before."""
    joined = re.sub(r"\n +", " ", text)
    return {line.split(":")[0]: line.split(":")[1].strip() for line in joined.split("\n") if line}


def _declare_enum(file: Any, name: str, values: str) -> None:
    # Names of values belong to what surrounds their enumeration, and two have the same: each has a message around it.
    enum = file.message_type.add(name=f"{name}s").enum_type.add(name=name)
    enum.options.allow_alias = len(set(re.findall(r"\d+", values))) < len(re.findall(r"\d+", values))
    prefix, rest = values.split(" ", 1)
    for value in rest.split(", "):
        word, number = value.split(" ")
        enum.value.add(name=prefix + word, number=int(number))


def _declare_message(file: Any, name: str, fields: str, enums: frozenset[str]) -> None:
    message = file.message_type.add(name=name)
    for field in fields.split(", ") if fields else ():
        word, number, type_ = field.split(" ")
        added = message.field.add(name=word, number=int(number))
        added.label = _REPEATED if type_.endswith("*") else _OPTIONAL
        if type_.endswith("|"):
            if not message.oneof_decl:
                message.oneof_decl.add(name="kind")
            added.oneof_index = 0
        bare = type_.rstrip("*|")
        added.type = _SCALARS.get(bare, _ENUM if bare in enums else _MESSAGE)
        if bare not in _SCALARS:
            added.type_name = f".{_PACKAGE}.{f'{bare}s.{bare}' if bare in enums else bare}"
