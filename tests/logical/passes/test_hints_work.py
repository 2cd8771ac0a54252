# ruff: noqa: E501 - a query and its hint are easier to compare in a line each
"""Hints of refusals that people of other systems meet: each says what to write, and that then runs."""

from __future__ import annotations

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.queries import analyze, read_script

SOURCES = """
CREATE STREAM orders (id BIGINT, item STRING, amount DOUBLE, t TIMESTAMP, WATERMARK FOR t AS t - 5m);
CREATE STREAM sent (id BIGINT, courier STRING, dt TIMESTAMP, WATERMARK FOR dt AS dt - 5m);
CREATE STREAM ticks (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 5);
CREATE TABLE cust (id BIGINT, name STRING, city STRING, PRIMARY KEY (id));
CREATE TABLE bag (item STRING, price DECIMAL(10,2));
CREATE SINK target USING parquet OPTIONS (path 'target');
"""
TOP = "QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY t"
LATEST = "FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY t) AS n FROM orders) AS q WHERE n = 1"
HOURS = "FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(t), INTERVAL '1' HOUR)) GROUP BY window_start, window_end, item"
HINTS = {
    "a bound in WHERE of an outer join": (
        "SELECT STREAM o.id FROM orders o LEFT JOIN sent s ON o.id = s.id WHERE s.dt >= o.t AND s.dt <= o.t + INTERVAL 1 HOUR;",
        "move `s.dt >= o.t AND s.dt <= o.t + INTERVAL 1 HOUR` from WHERE to ON.",
        "SELECT STREAM o.id FROM orders o LEFT JOIN sent s ON o.id = s.id AND s.dt >= o.t AND s.dt <= o.t + INTERVAL 1 HOUR;",
    ),
    "IN over the stream of the query itself": (
        "SELECT STREAM id FROM orders WHERE id IN (SELECT id FROM orders WHERE amount > 5);",
        "write `FROM orders AS orders_2` in the subquery, and add `orders_2.t BETWEEN orders.t - INTERVAL 5 MINUTES AND orders.t + INTERVAL 5 MINUTES` to the WHERE of the subquery.",
        "SELECT STREAM id FROM orders WHERE id IN (SELECT id FROM orders AS orders_2 WHERE amount > 5 AND orders_2.t BETWEEN orders.t - INTERVAL 5 MINUTES AND orders.t + INTERVAL 5 MINUTES);",
    ),
    "a value of a row that the query around names": (
        "SELECT STREAM id, (SELECT name FROM cust c WHERE c.id = orders.id) AS name FROM orders;",
        "write `LEFT JOIN cust c ON c.id = orders.id` behind FROM",
        "SELECT STREAM orders.id, c.name FROM orders LEFT JOIN cust c ON c.id = orders.id;",
    ),
    "a subquery with a join that names the query around it": (
        "SELECT STREAM id FROM orders WHERE id IN (SELECT c.id FROM cust c JOIN bag b ON b.item = c.name WHERE c.city = orders.item);",
        "make a view v of it, which shows the columns that are compared, and write `EXISTS (SELECT * FROM v WHERE v.x = orders.item)`.",
        "CREATE VIEW v AS SELECT TABLE c.id, c.city AS x FROM cust c JOIN bag b ON b.item = c.name;SELECT STREAM id FROM orders WHERE EXISTS (SELECT * FROM v WHERE v.x = orders.item AND v.id = orders.id);",
    ),
    "a misspelt column in a hint": (
        "SELECT /*+ SKEW('o', 'idd', 1) */ STREAM o.id FROM orders o JOIN sent s WITHIN 1h ON o.id = s.id;",
        "did you mean `id`?",
        "SELECT /*+ SKEW('o', 'id', 1) */ STREAM o.id FROM orders o JOIN sent s WITHIN 1h ON o.id = s.id;",
    ),
    "a misspelt relation in a hint": (
        "SELECT /*+ SKEW('ordrs', 'id', 1) */ STREAM orders.id FROM orders JOIN sent s WITHIN 1h ON orders.id = s.id;",
        "did you mean `orders`?",
        "SELECT /*+ SKEW('orders', 'id', 1) */ STREAM orders.id FROM orders JOIN sent s WITHIN 1h ON orders.id = s.id;",
    ),
    "a hint that no join can follow": (
        "SELECT /*+ SKEW('o', 'item', 'a') */ STREAM o.id FROM orders o JOIN sent s WITHIN 1h ON o.id = s.id;",
        "leave it out: the result is the same.",
        "SELECT STREAM o.id FROM orders o JOIN sent s WITHIN 1h ON o.id = s.id;",
    ),
    "a limit in a time of another unit": (
        "SELECT STREAM DISTINCT id FROM ticks WITHIN 10 MINUTES;",
        "write a whole number, as the event time is one.",
        "SELECT STREAM DISTINCT id FROM ticks WITHIN 10;",
    ),
    "the first row of a subquery": (
        f"SELECT STREAM id {LATEST};",
        "add `WITHIN 10 MINUTES` at the end",
        f"SELECT STREAM id {LATEST} WITHIN 10 MINUTES;",
    ),
    "the rank of a first row": (
        f"SELECT STREAM id, n {LATEST} WITHIN 10 MINUTES;",
        "leave `n` out of SELECT: it is 1 in each row.",
        f"SELECT STREAM id {LATEST} WITHIN 10 MINUTES;",
    ),
    "the latest row as a stream": (
        f"SELECT STREAM id FROM orders {TOP} DESC) = 1;",
        "write SELECT TABLE; or order by the event time alone, ascending, and add `WITHIN 10 MINUTES` at the end",
        f"SELECT STREAM id FROM orders {TOP}) = 1 WITHIN 10 MINUTES;",
    ),
    "DISTINCT of a join": (
        "SELECT STREAM DISTINCT o.id FROM orders o JOIN sent s ON o.id = s.id WITHIN 1h;",
        "add `WITHIN 10 MINUTES` at the end",
        "SELECT STREAM DISTINCT o.id FROM orders o JOIN sent s ON o.id = s.id WITHIN 1h WITHIN 10 MINUTES;",
    ),
    "DISTINCT ON": (
        "SELECT DISTINCT ON (id) id, item FROM orders;",
        "write `QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY t) = 1` at the end of the query.",
        f"SELECT id, item FROM orders {TOP}) = 1;",
    ),
    "the first rows of windows without PARTITION BY": (
        f"SELECT STREAM window_end, item, count(*) AS n {HOURS} ORDER BY n DESC LIMIT 3;",
        "write `QUALIFY ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY ...) <= 3` in place of LIMIT",
        f"SELECT STREAM window_end, item, count(*) AS n {HOURS} QUALIFY ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY n DESC) <= 3;",
    ),
    "a view that hides its time": (
        "CREATE VIEW v AS SELECT STREAM item FROM orders; SELECT STREAM item, count(*) AS n FROM v GROUP BY item;",
        "write SELECT TABLE; or show `t` in v and group by `window(t, '1 hour')`",
        "CREATE VIEW v AS SELECT STREAM item, t FROM orders;SELECT STREAM item, count(*) AS n FROM v GROUP BY item, window(t, '1 hour');",
    ),
    "a time that a joined view hides": (
        "CREATE VIEW v AS SELECT STREAM id FROM orders; SELECT STREAM v.id FROM v JOIN sent s WITHIN 1h ON v.id = s.id;",
        "show `t` in v, as it is: it has a watermark.",
        "CREATE VIEW v AS SELECT STREAM id, t FROM orders;SELECT STREAM v.id FROM v JOIN sent s WITHIN 1h ON v.id = s.id;",
    ),
    "a table without versions": (
        "SELECT STREAM o.id FROM orders o JOIN cust FOR SYSTEM_TIME AS OF o.t AS c ON o.id = c.id;",
        "or write `FOR SYSTEM_TIME AS OF PROCTIME()` for the row of the moment.",
        "SELECT STREAM o.id FROM orders o JOIN cust FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.id = c.id;",
    ),
    "a name of SELECT in WHERE": (
        "SELECT TABLE id, ROW_NUMBER() OVER (PARTITION BY city ORDER BY name) AS n FROM cust WHERE n <= 3;",
        "write `SELECT * FROM (SELECT ... AS n ...) WHERE n ...`.",
        "SELECT TABLE * FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY city ORDER BY name) AS n FROM cust) WHERE n <= 3;",
    ),
    "ORDER BY without LIMIT": (
        "SELECT TABLE id FROM cust ORDER BY name DESC, id;",
        "write `ORDER BY name DESC, id LIMIT 10`",
        "SELECT TABLE id FROM cust ORDER BY name DESC, id LIMIT 10;",
    ),
    "LIMIT with two numbers": (
        "SELECT TABLE id FROM cust ORDER BY name LIMIT 3, 5;",
        "write `LIMIT 5 OFFSET 3`.",
        "SELECT TABLE id FROM cust ORDER BY name LIMIT 5 OFFSET 3;",
    ),
    "OFFSET alone": (
        "SELECT TABLE id FROM cust OFFSET 3;",
        "write `ORDER BY x LIMIT 10 OFFSET 20`, or leave it out",
        "SELECT TABLE id FROM cust ORDER BY name LIMIT 10 OFFSET 3;",
    ),
    "an approximate percentile": (
        "SELECT TABLE city, approx_percentile(id, 0.5) AS m FROM cust GROUP BY city;",
        "write `percentile(x, 0.5)`, which is exact.",
        "SELECT TABLE city, percentile(id, 0.5) AS m FROM cust GROUP BY city;",
    ),
    "an approximate count": (
        "SELECT TABLE city, approx_count_distinct(name) AS n FROM cust GROUP BY city;",
        "write `count(DISTINCT x)`, which is exact.",
        "SELECT TABLE city, count(DISTINCT name) AS n FROM cust GROUP BY city;",
    ),
    "ANY of a subquery": (
        "SELECT STREAM id FROM orders WHERE id = ANY (SELECT id FROM cust);",
        "write `x IN (SELECT y FROM b)`",
        "SELECT STREAM id FROM orders WHERE id IN (SELECT id FROM cust);",
    ),
    "VALUES in IN": (
        "SELECT STREAM id FROM orders WHERE id IN (VALUES (1), (2));",
        "write the values alone: `x IN (1, 2, 3)`.",
        "SELECT STREAM id FROM orders WHERE id IN (1, 2);",
    ),
    "a union by names": (
        "SELECT id FROM cust UNION BY NAME SELECT id FROM cust;",
        "name the columns of each part in one order, and leave BY NAME out.",
        "SELECT id FROM cust UNION SELECT id FROM cust;",
    ),
    "a session of ksqlDB": (
        "SELECT item, count(*) AS n FROM orders WINDOW SESSION (10 MINUTES) GROUP BY item EMIT FINAL;",
        "write `GROUP BY session_window(t, '10 minutes')`, for example.",
        "SELECT item, count(*) AS n FROM orders GROUP BY item, session_window(t, '10 minutes') EMIT FINAL;",
    ),
    "a primary key beside its column": (
        "CREATE TABLE t (number BIGINT PRIMARY KEY, x STRING); SELECT number FROM t;",
        "write `PRIMARY KEY (number)` after the columns.",
        "CREATE TABLE t (number BIGINT, x STRING, PRIMARY KEY (number)); SELECT number FROM t;",
    ),
    "columns behind INSERT INTO": (
        "INSERT INTO target (id, item) SELECT STREAM id, item FROM orders;",
        "leave it out: columns are written by their names in SELECT",
        "INSERT INTO target SELECT STREAM id, item FROM orders;",
    ),
    "a zone under another name": (
        "SET timezone = 'Europe/Berlin'; SELECT id FROM orders;",
        "write `SET spark.sql.session.timeZone = Europe/Berlin`, for example.",
        "SET spark.sql.session.timeZone = Europe/Berlin; SELECT id FROM orders;",
    ),
    "INSERT INTO a stream that is read": (
        "CREATE STREAM mid (id BIGINT); INSERT INTO mid SELECT STREAM id FROM orders; INSERT INTO target SELECT id FROM mid;",
        "write `CREATE VIEW mid AS SELECT ...` in place of mid and its INSERT, and read the view",
        "CREATE VIEW mid AS SELECT STREAM id FROM orders; INSERT INTO target SELECT id FROM mid;",
    ),
    "FROM a sink": (
        "INSERT INTO target SELECT STREAM id FROM orders; SELECT STREAM id FROM target WHERE id > 1;",
        "target is a sink: make a view of its query, and read the view in both.",
        "CREATE VIEW v AS SELECT STREAM id FROM orders; INSERT INTO target SELECT STREAM * FROM v; SELECT STREAM id FROM v WHERE id > 1;",
    ),
    "a union of other columns": (
        "SELECT id, name FROM cust EXCEPT SELECT id FROM cust;",
        "part 1 has 2 columns, part 2 has 1 column.",
        "SELECT id FROM cust EXCEPT SELECT id FROM cust;",
    ),
}


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_names_what_then_runs(name: str) -> None:
    refused, hint, followed = HINTS[name]
    with pytest.raises(WatersmeetError) as error:
        analyze(read_script(SOURCES + refused))
    assert hint in str(error.value)
    assert "#" not in str(error.value).partition("Hint:")[2]
    analyze(read_script(SOURCES + followed))
