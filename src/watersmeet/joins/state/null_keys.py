"""Whether the rows of a shard that have NULL keys are where their next versions go.

Earlier versions sent a row with a NULL key to any shard, so that its next version went to another one, which did not
find it. A state says by the value `NULL_KEYS` that its rows are placed by `watersmeet.joins.core.routing`.
"""

from __future__ import annotations

from watersmeet.joins.core.matching import HIGHEST
from watersmeet.joins.core.operator import StateStore, StreamOperator
from watersmeet.joins.state.format import DIRECTORY, RUN, Directory, decode_rows

NULL_KEYS = "null keys"
"""The name under which a shard says how its rows with NULL keys are placed."""
BY_CONTENT = b"by content"


def places_null_keys(operator: StreamOperator, store: StateStore, shards: int) -> bool:
    """Whether every stored row with a NULL key is in its shard; if so, the state says so from now on."""
    if not operator.null_key_spines or store.get(NULL_KEYS) is not None:
        return True
    if shards > 1 and _holds_null_keys(operator, store):
        return False
    store.put(NULL_KEYS, BY_CONTENT)
    return True


def _holds_null_keys(operator: StreamOperator, store: StateStore) -> bool:
    runs = Directory.decode(store.get(DIRECTORY), operator.canonical_names).runs
    for spine, key in operator.null_key_spines:
        for block in (block for run in runs.get(spine, ()) for block in run):
            # NULL is stored as the highest code, so other blocks need not be read.
            value = store.get(f"{RUN}{block.name}") if block.highest_code == HIGHEST else None
            if value is not None and decode_rows(value).column(operator.canonical_names.canonical(key)).null_count:
                return True
    return False
