"""A schema registry, asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import registry as served

from watersmeet.formats.registry import NotRegisteredError, Registry, RegistryError

ITEM = '{"type": "record", "name": "Item", "fields": []}'
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}'


@pytest.fixture
def registry_server() -> Iterator[served.Registry]:
    with served.registry("me:pass") as made:
        yield made


def registry_of(registry_server: served.Registry, **more: str) -> Registry:
    said = {"user": "me", "password": "pass", **more}
    found = Registry.of(
        {"schema.registry.url": registry_server.url, **{f"schema.registry.{n}": v for n, v in said.items()}}
    )
    assert found is not None
    return found


def test_schemas_are_found_by_subject_and_by_number_with_those_they_refer_to_and_requested_once(
    registry_server: served.Registry,
) -> None:
    item = registry_server.add("shop/items", ITEM)
    order = registry_server.add("orders", ORDER, [{"name": "Item", "subject": "shop/items", "version": 1}])
    registry = registry_of(registry_server)
    assert registry.latest("orders").texts == (ITEM, ORDER) and registry.latest("orders").id == order
    assert registry.by_id(item) == (ITEM,)
    before = len(registry_server.asked)
    assert registry.by_id(order) == (ITEM, ORDER) and registry.by_id(item) == (ITEM,)
    assert len(registry_server.asked) == before
    assert registry.register("new", ITEM) == item, "what is known has its number"


def test_the_next_server_is_tried_if_one_is_silent(registry_server: served.Registry) -> None:
    registry_server.add("a", ITEM)
    login = {"schema.registry.user": "me", "schema.registry.password": "pass"}
    registry = Registry.of({"schema.registry.url": f"http://127.0.0.1:9/, {registry_server.url}/", **login})
    assert registry is not None and registry.latest("a").texts == (ITEM,)


def test_refusals_of_a_registry_say_why_without_the_password(registry_server: served.Registry) -> None:
    with pytest.raises(NotRegisteredError, match=r"404 \(Subject 'b' not found\)"):
        registry_of(registry_server).latest("b")
    with pytest.raises(RegistryError, match=r"401 \(Unauthorized\)"):
        registry_of(registry_server, password="wrong").latest("b")
    with pytest.raises(RegistryError, match="neither http:// nor https://"):
        Registry(("ftp://host",)).latest("b")
    with pytest.raises(RegistryError, match="does not answer"):
        Registry(("http://127.0.0.1:9",)).latest("b")
    assert "pass" not in repr(registry_of(registry_server)).replace("password", "")
    assert Registry.of({}) is None
    registry_server.schemas.append({"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"})
    with pytest.raises(RegistryError, match="a PROTOBUF schema there"):
        registry_of(registry_server).by_id(len(registry_server.schemas))
