CREATE STREAM orders (
    id BIGINT NOT NULL, items ARRAY<STRUCT<price: DOUBLE>>, note STRING, t TIMESTAMP,
    WATERMARK FOR t AS t - INTERVAL 5 SECONDS
);
CREATE STREAM payments (id BIGINT NOT NULL, paid DOUBLE, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
WITH parts AS (SELECT STREAM o.id AS part_of, item.price, o.t FROM orders o LATERAL o.items AS item WHERE item.price > 0);
SELECT STREAM x.part_of, x.price, p.paid
FROM parts x LEFT JOIN payments p WITHIN 1h ON x.part_of = p.id
WHERE x.price < 1000 AND (p.paid IS NULL OR p.paid < x.price);
