"""All commands with another default file system: a path without a scheme is one of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.cli.test_commands import watersmeet

import watersmeet as ws

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE STREAM orders (id BIGINT, item STRING, t BIGINT, WATERMARK FOR t AS t - 0)
  USING json OPTIONS (path 'data/orders', maxFilesPerTrigger '1', malformed 'drop');
CREATE STREAM paid (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0)
  USING parquet OPTIONS (path '{root}/data/paid', basePath '{root}/data', maxFilesPerTrigger '1');
CREATE TABLE items (item STRING, price INT, PRIMARY KEY (item))
  USING csv OPTIONS (path 'data/items', static 'true');
CREATE SINK joined USING json OPTIONS (path 'output/joined');
CREATE SINK unread USING json OPTIONS (path 'output/unread');
CREATE SINK late USING json OPTIONS (path 'output/late');
CREATE SINK counts USING json OPTIONS (path 'output/counts', changes 'snapshot');
INSERT INTO joined SELECT STREAM o.id, p.t AS paid FROM orders o LEFT JOIN paid p
  ON o.id = p.id AND p.t BETWEEN o.t AND o.t + {bound} LATE INTO late MALFORMED INTO unread;
INSERT INTO counts SELECT TABLE i.price, count(*) AS n FROM items i GROUP BY i.price;
"""

CASE = """
name: a table joined with itself
sql: |
  CREATE TABLE t (id BIGINT, v BIGINT, PRIMARY KEY (id));
  SELECT TABLE a.id, b.v FROM t a JOIN t b ON a.id = b.v;
batches:
- in: {t: [[1, 1], [2, 1]]}
  out: [["+", 1, 1], ["+", 1, 1]]
"""


def arrive(shop: Path, batch: int) -> None:
    """A file of each stream: three orders of which one is never paid; the second batch has a late order."""
    orders = shop / "data" / "orders" / f"{batch}.json"
    orders.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": 3 * batch + n, "item": "ab"[n % 2], "t": 100 * batch + n} for n in range(3)]
    rows += [{"id": -1, "item": "a", "t": 0}] * batch
    orders.write_text("".join(json.dumps(row) + "\n" for row in rows) + "no JSON\n")
    paid = shop / "data" / "paid" / f"{batch}.parquet"
    paid.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [3 * batch, 3 * batch + 1], "t": [100 * batch + 1, 100 * batch + 2]}), paid)
    items = shop / "data" / "items" / "0.csv"
    items.parent.mkdir(parents=True, exist_ok=True)
    items.write_text("a,1\nb,2\nc,2\n")


def ran(*words: str | Path) -> str:
    """What a command says that succeeds."""
    ended = watersmeet(*words)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.json")) for line in file.read_text().splitlines()]


def test_default_file_system_of_another_kind_changes_nothing(
    spark: SparkSession, other_files: Path, tmp_path: Path
) -> None:
    shop = tmp_path / "shop"
    arrive(shop, 0)
    (shop / "watersmeet.yml").write_text("name: shop\nlibraries: [{glob: {include: '*.sql'}}]\n")
    (shop / "shop.sql").write_text(SCRIPT.format(root=shop, bound=5))
    ran("check", shop, "--deep")
    assert "orders" in ran("advise", shop)
    (shop / "case.yaml").write_text(CASE)
    assert "1 passed" in ran("test", shop / "case.yaml", "--on", "spark")
    ran("run", shop, "--once")
    assert "continue with its state" in ran("check", shop, "--against", shop / "storage")

    told = {one["query"]: one for one in json.loads(ran("state", "show", shop, "--format", "json"))}
    sides = told["joined"]["operators"][0]["kept"]
    kept = {one["kept"]: sum(shard["rows"] for shard in one["shards"]) for one in sides}
    assert kept == {"left": 3, "right": 1}
    assert ran("state", "check", shop).count("no problems") == 2
    ran("state", "read", shop, "--query", "joined", "--side", "o", "--as", "json", "--into", tmp_path / "rows")
    assert len(rows_in(tmp_path / "rows")) == 3
    checkpoint = shop / "storage" / "checkpoints" / "joined"
    assert ws.state(checkpoint, spark).rows("o").count() == 3
    assert ws.state(checkpoint.as_uri(), spark).rows("o").count() == 3
    ran("state", "rescale", shop, "--query", "joined", "--shards", "3", "--partitions", "2")

    # The bound has changed: its state is made again from what it has read.
    arrive(shop, 1)
    (shop / "shop.sql").write_text(SCRIPT.format(root=shop, bound=6))
    ran("run", shop, "--once", "--rebuild")
    assert "matched" in ran("why", shop, "orders", "id=1", "--query", "joined")
    text = (shop / "shop.sql").read_text()
    declared = text[: text.index("CREATE TABLE")].replace("'data/", f"'{shop}/data/")
    query = text[text.index("SELECT STREAM") : text.index("LATE INTO")]
    answer = ws.why(declared + query, "orders", {"id": 1}, checkpoint=checkpoint.as_uri(), spark=spark)
    assert "matched" in str(answer)
    ran("state", "export", shop, "--query", "joined", "--to", tmp_path / "joined.tar.gz")
    (shop / "storage").rename(tmp_path / "before")
    ran("state", "import", tmp_path / "joined.tar.gz", shop, "--move")
    assert "joined" in ran("compact", shop)
    ran("run", shop, "--end")

    couriers = {row["id"]: row.get("paid") for row in rows_in(shop / "output" / "joined")}
    assert couriers == {0: 1, 1: 2, 2: None, 3: 101, 4: 102, 5: None}
    assert [row["value"] for row in rows_in(shop / "output" / "unread")] == ["no JSON"] * 2
    assert [row["place"].rpartition(", ")[2] for row in rows_in(shop / "output" / "unread")] == ["line 4", "line 5"]
    (late,) = rows_in(shop / "output" / "late")
    assert '"id":-1' in json.dumps(late, separators=(",", ":"))
    counts = rows_in(shop / "output" / "counts" / "current")
    assert sorted((row["price"], row["n"]) for row in counts) == [(1, 1), (2, 2)]
    assert [*other_files.rglob("*")] == [], "these went to the default file system"
