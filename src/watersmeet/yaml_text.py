"""YAML as people mean it: a key that stands twice is a mistake, where YAML's reader takes the last one."""

from __future__ import annotations

from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class DoubledKeyError(yaml.YAMLError):
    """A key that stands twice in one mapping."""


class _Loader(yaml.SafeLoader):
    """Reads what `yaml.safe_load` reads, and refuses keys that stand twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if name in lines:
                raise DoubledKeyError(f"the key `{key.value}` appears twice, in lines {lines[name]} and {line}")
            lines[name] = line
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str) -> Any:
    """What a text in YAML says.

    >>> read_yaml("{name: shop, storage: here}")
    {'name': 'shop', 'storage': 'here'}
    """
    return yaml.load(text, _Loader)
