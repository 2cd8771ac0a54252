CREATE STREAM orders (id BIGINT, item BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - 5s);
CREATE STREAM rates (item BIGINT, rate DOUBLE, valid BOOLEAN, t TIMESTAMP, WATERMARK FOR t AS t - 1m);
CREATE TABLE items (item BIGINT, name STRING, changed TIMESTAMP, PRIMARY KEY (item), WATERMARK FOR changed AS changed);
SELECT STREAM o.id, r.rate, i.name
FROM orders o LEFT ASOF JOIN rates r MATCH_CONDITION (o.t >= r.t) ON o.item = r.item AND r.valid AND o.id > 0
  WITHIN 1h DEFAULT (rate 1.0)
JOIN items FOR SYSTEM_TIME AS OF o.t AS i ON o.item = i.item
WHERE o.id < 1000 AND r.rate > 0;
SELECT STREAM o.id, r.rate FROM orders o ASOF JOIN rates r MATCH_CONDITION (o.t < r.t) WITHIN 1h;
SELECT STREAM o.id, r.rate FROM orders o ASOF JOIN rates r MATCH_CONDITION (nearest(r.t, o.t)) USING (item) WITHIN 1h;
