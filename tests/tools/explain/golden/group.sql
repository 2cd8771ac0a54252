CREATE STREAM orders (id BIGINT, customer STRING, amount DOUBLE, note STRING);
SELECT TABLE o.customer, count(*) AS orders, sum(o.amount) / 2 AS half
FROM orders o WHERE o.amount > 0 GROUP BY o.customer;
CREATE STREAM ticks (v INT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
SELECT TABLE window(k.t, '5 minutes') AS w, max(k.v) AS most FROM ticks k GROUP BY window(k.t, '5 minutes');
CREATE TABLE names (customer STRING NOT NULL, name STRING NOT NULL, PRIMARY KEY (customer));
SELECT TABLE n.name, g.orders
FROM (SELECT TABLE customer, count(*) AS orders FROM orders GROUP BY customer) g
JOIN names n ON g.customer = n.customer
WHERE g.orders > 2;
