CREATE STREAM orders (id BIGINT, items ARRAY<INT>, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
CREATE STREAM ticks (id BIGINT, v DOUBLE);
CREATE SINK counted USING parquet OPTIONS (path '/data/counted', changes 'log');
WITH recent AS (SELECT STREAM * FROM orders WHERE id > 0);
INSERT INTO counted
WITH a AS (SELECT STREAM r.id, r.items, r.t FROM recent r)
SELECT TABLE x.id, count(*) AS n
FROM a x JOIN (SELECT STREAM id, t FROM orders) o WITHIN 5s ON x.id = o.id LATERAL x.items AS item
WHERE item > 5 GROUP BY x.id;
SELECT STREAM l.v, r.v AS other
FROM ticks l WINDOW (COUNT 5 PARTITION BY id) LEFT JOIN ticks r WINDOW (TIME 5s) ON l.id = r.id PAD RIGHT WITH ZEROS;
