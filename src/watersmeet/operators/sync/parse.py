"""``a SYNC JOIN b [SYNC JOIN c ...]``, and ``PORTS INTO``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from watersmeet.logical.nodes import JoinKind, Lateral, Leaf, Relation
from watersmeet.operators.sync.analyze import ParsedSyncJoin
from watersmeet.parser.cursor import Cursor, Grammar, ReadLeaf, Words


class SyncGrammar(Grammar):
    """SYNC JOIN has no condition."""

    joins: ClassVar[Mapping[Words, JoinKind]] = {("SYNC", "JOIN"): "inner"}
    outputs: ClassVar[Mapping[Words, str]] = {("PORTS", "INTO"): "_port_"}
    words = ("SYNC", "PORTS")

    def read_join(self, cursor: Cursor, left: Relation, words: Words, read_leaf: ReadLeaf) -> ParsedSyncJoin:
        if not isinstance(left, Leaf):
            construct = "LATERAL" if isinstance(left, Lateral) else "another join"
            raise cursor.refuse_unsupported(
                f"SYNC JOIN after {construct}", "write the SYNC JOIN first, then the others.", 2
            )
        first, ports = cursor.position, [left]
        while cursor.at(*words):
            cursor.begin_line()
            cursor.skip(2)
            ports.append(read_leaf())
        span = cursor.span_from(first)
        is_padded = any(grammar.at_padding(cursor) for grammar in cursor.grammars)
        if cursor.at_any({"ON", "USING", "WITHIN"}) or is_padded:
            hint = "leave it out: rows match at equal times. Write a further condition in WHERE."
            raise cursor.refuse_unsupported(f"{cursor.peek().word} of a SYNC JOIN", hint)
        return ParsedSyncJoin(tuple(ports), span)


READ = SyncGrammar()
