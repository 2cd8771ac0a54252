CREATE STREAM orders (id BIGINT, customer_id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 SECONDS);
CREATE TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id));
CREATE TABLE addresses (customer_id BIGINT, city STRING, PRIMARY KEY (customer_id));

SELECT STREAM c.name, o.id
FROM customers c JOIN orders o ON c.id = o.customer_id;

SELECT STREAM c.name, o.id
FROM orders o OUTER JOIN customers c WITHIN 5 MINUTES ON c.id = o.customer_id;

SELECT TABLE c.id
FROM customers c ANTI JOIN orders o ON c.id = o.customer_id;

SELECT STREAM c.name, a.city
FROM customers c LEFT JOIN addresses a ON a.customer_id = c.id;

SELECT TABLE id FROM orders;

SELECT TABLE c.name, a.city
FROM customers c LEFT JOIN addresses a ON a.customer_id = c.id AND concat(c.name, a.city) LIKE '%x%';
