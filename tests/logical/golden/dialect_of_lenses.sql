SET watersmeet.dialect = lenses;

CREATE STREAM customers (_key BIGINT, id BIGINT, name STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 SECONDS);
CREATE STREAM orders (_key BIGINT, customer_id BIGINT, item STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 SECONDS);

SELECT STREAM o.item FROM customers c JOIN orders o WITHIN 5s
ON c._key - o.customer_id = 0;

SELECT STREAM o.item FROM customers c JOIN orders o WITHIN 5s
ON c._key = 1 OR c._key = o.customer_id;

SELECT STREAM o.item FROM customers c JOIN orders o WITHIN 5s
ON c.id = o.customer_id AND concat(c.name, o.item) = 'John' AND c._key < o._key;
