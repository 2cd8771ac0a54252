"""What is most likely a mistake, though only Spark can tell: names of functions, formats and options.

``check`` refuses it. A run does not: Spark knows what packages, extensions and its users have added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from watersmeet.catalog import Sink, Source, Span
from watersmeet.errors import Refusal
from watersmeet.formats import OWN, format_names, sink_format
from watersmeet.formats.options import NEEDED, OPTIONS, unknown_options
from watersmeet.formats.sink import OWN as OWN_OF_SINKS
from watersmeet.functions import builtin_signatures, function_hint
from watersmeet.plan.nodes import CalledFunction, Script
from watersmeet.plan.query import QueryWarning


@dataclass(frozen=True)
class Suspicions:
    """What a script has that is most likely wrong, and what its author should look at."""

    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[QueryWarning, ...] = ()


def find_suspicions(script: Script, *, may_add_functions: bool = False) -> Suspicions:
    """What is most likely a mistake in a script; ``may_add_functions``: Spark may know more than its own."""
    calls = [(call, wrong) for call in script.calls for wrong in _check_call(script, call)]
    declared: tuple[Source | Sink, ...] = (*script.sources, *script.sinks)
    refusals = [
        wrong
        for declaration in declared
        for wrong in (*_check_format(script, declaration), *_check_options(script, declaration))
    ]
    warnings = [warned for declaration in declared for warned in _warn_unknown_options(script, declaration)]
    if may_add_functions:
        warnings += [
            QueryWarning(f"{wrong.message} Unless you register it: {wrong.hint}", call.span) for call, wrong in calls
        ]
    else:
        refusals += [wrong for _, wrong in calls]
    return Suspicions(tuple(refusals), tuple(warnings))


def _check_call(script: Script, call: CalledFunction) -> Iterator[Refusal]:
    """A function that Spark does not have by itself, or has with another number of arguments."""
    place, counts = script.place(call.span), builtin_signatures().get(call.name.lower())
    if counts is None:
        yield Refusal("UNKNOWN_FUNCTION", {"function": call.name, "hint": function_hint(call.name)}, place)
    elif counts and call.count is not None and call.count not in counts:
        expected = " or ".join(str(count) for count in sorted(counts))
        examples = "abcdefghijklmnopqrst"[: min(counts, key=lambda count: abs(count - (call.count or 0)))]
        parameters = {
            "function": call.name,
            "expected": f"{expected} {'argument' if expected == '1' else 'arguments'}",
            "count": str(call.count),
            "example": f"{call.name}({', '.join(examples)})",
        }
        yield Refusal("WRONG_CALL", parameters, place)


def _check_format(script: Script, declared: Source | Sink) -> Iterator[Refusal]:
    """A format that nobody knows and that is nearly one that is known."""
    format_ = (declared.format or "").lower()
    formats = {*format_names(), *OPTIONS, "jdbc", "memory", "noop", "postgres", "iceberg", "hudi"}
    if format_ in formats or (isinstance(declared, Sink) and not sink_format(declared).is_spark_format):
        return
    near = get_close_matches(format_, formats, n=1, cutoff=0.7) if "." not in format_ else []
    if near:
        parameters = {"format": str(declared.format), "hint": f"did you mean `{near[0]}`?"}
        yield Refusal("UNKNOWN_FORMAT", parameters, script.place(_span_of_name(script, declared, str(declared.format))))


def _check_options(script: Script, declared: Source | Sink) -> Iterator[Refusal]:
    """Options that a format does not have, each nearly one that it has, and those without which it cannot be."""
    unknown = _unknown(declared)
    for name, suggestion in unknown.items():
        if suggestion is not None:
            reason = f"it has no option `{name}`, so that would have no effect"
            parameters = {"option": name, "reason": reason, "hint": f"did you mean `{suggestion}`?"}
            place = script.place(_span_of_name(script, declared, name))
            yield Refusal("WRONG_OPTION", {"format": str(declared.format), **parameters}, place)
    for names in NEEDED.get((declared.format or "").lower(), ()):
        # A source and a sink have one of their own: topics are subscribed to, and written to.
        usual = names[0] if isinstance(declared, Source) else names[-1]
        if not set(names) & declared.lowercase_options.keys() and not set(names) & {*unknown.values()}:
            reason = f"the option `{usual}` is missing, so there is nothing to {_verb(declared)}"
            hint = f"write `OPTIONS ({usual} '{_EXAMPLES.get(usual, '...')}')`."
            parameters = {"option": f"USING {declared.format}", "reason": reason, "hint": hint}
            yield Refusal("WRONG_OPTION", {"format": str(declared.format), **parameters}, script.place(declared.span))


_EXAMPLES = {"path": "data/orders", "kafka.bootstrap.servers": "host:9092", "subscribe": "orders", "topic": "orders"}


def _verb(declared: Source | Sink) -> str:
    return "read" if isinstance(declared, Source) else "write to"


def _warn_unknown_options(script: Script, declared: Source | Sink) -> Iterator[QueryWarning]:
    for name, suggestion in _unknown(declared).items():
        if suggestion is None:
            message = f"`{name}` is not a known option of {declared.format}; Spark ignores unknown options."
            yield QueryWarning(message, _span_of_name(script, declared, name))


def _span_of_name(script: Script, declared: Source | Sink, name: str) -> Span:
    """Where the declaration says this name last: its format and its options stand behind its columns."""
    start = script.text.rfind(name, declared.span.start, declared.span.end)
    return declared.span if start < 0 else Span(start, start + len(name))


def _unknown(declared: Source | Sink) -> dict[str, str | None]:
    own = OWN if isinstance(declared, Source) else OWN_OF_SINKS
    return unknown_options(declared.format or "", tuple(declared.options), own)
