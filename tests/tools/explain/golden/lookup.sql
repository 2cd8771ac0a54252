CREATE STREAM orders (id BIGINT NOT NULL, customer BIGINT, amount DOUBLE);
CREATE TABLE customers (id BIGINT NOT NULL, name STRING NOT NULL, PRIMARY KEY (id));
SELECT STREAM o.id, c.id AS customer, c.name
FROM orders o LEFT JOIN customers c ON o.customer = c.id AND o.amount > 0
WHERE o.id > 10 AND c.name <> 'x';
