CREATE STREAM orders (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
CREATE STREAM deliveries (id BIGINT, address STRING, delivered TIMESTAMP);
SELECT STREAM o.id FROM orders o
RIGHT JOIN deliveries d ON o.id = d.id AND d.delivered = o.t;
