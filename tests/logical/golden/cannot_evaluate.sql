CREATE STREAM orders (name STRING, t BIGINT, WATERMARK FOR t AS t - 5);
CREATE STREAM deliveries (name STRING, t BIGINT, WATERMARK FOR t AS t - 5);
SELECT STREAM o.name FROM orders o
LEFT JOIN deliveries d WITHIN 60 ON concat(o.name, d.name) = 'ab' AND o.t < d.t;
