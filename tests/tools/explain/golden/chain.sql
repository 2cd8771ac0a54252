CREATE STREAM orders (id INT, v BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
CREATE STREAM deliveries (id BIGINT, v BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
CREATE STREAM payments (id BIGINT, v BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
CREATE TABLE customers (v BIGINT, name STRING, PRIMARY KEY (v));
SELECT STREAM o.id, d.v AS delivered, p.v AS paid, c.name
FROM orders o
LEFT JOIN deliveries d WITHIN 1h ON o.id = d.id
LEFT JOIN payments p ON p.id = o.id AND p.t BETWEEN o.t AND o.t + INTERVAL 2 HOURS
LEFT JOIN customers c ON o.v = c.v;
