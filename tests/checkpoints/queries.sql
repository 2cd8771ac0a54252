-- Every family once, over the same few sources. A kept checkpoint is continued with this very text.
CREATE STREAM orders (
  id BIGINT, customer STRING, amount DECIMAL(10, 2), t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 10 SECONDS
) USING json OPTIONS (path 'data/orders');
CREATE STREAM deliveries (
  id BIGINT, courier STRING, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 10 SECONDS
) USING json OPTIONS (path 'data/deliveries');
CREATE STREAM payments (
  id BIGINT, paid DOUBLE, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 10 SECONDS
) USING json OPTIONS (path 'data/payments');
CREATE TABLE customers (name STRING, city STRING, PRIMARY KEY (name)) USING json OPTIONS (path 'data/customers');
CREATE TABLE cities (city STRING, zone BIGINT, PRIMARY KEY (city)) USING json OPTIONS (path 'data/cities');

CREATE SINK interval_left USING json OPTIONS (path 'output/interval_left');
CREATE SINK interval_semi USING json OPTIONS (path 'output/interval_semi');
CREATE SINK interval_full USING json OPTIONS (path 'output/interval_full');
CREATE SINK chain USING json OPTIONS (path 'output/chain');
CREATE SINK windows USING json OPTIONS (path 'output/windows');
CREATE SINK partitions USING json OPTIONS (path 'output/partitions');
CREATE SINK equal_times USING json OPTIONS (path 'output/equal_times');
CREATE SINK versions USING json OPTIONS (path 'output/versions');
CREATE SINK looked_up USING json OPTIONS (path 'output/looked_up');
CREATE SINK merged USING json OPTIONS (path 'output/merged', changes 'log');
CREATE SINK nested USING json OPTIONS (path 'output/nested', changes 'log');
CREATE SINK grouped USING json OPTIONS (path 'output/grouped', changes 'log');
CREATE SINK hours USING json OPTIONS (path 'output/hours', changes 'log');
CREATE SINK doubles USING json OPTIONS (path 'output/doubles', changes 'log');
CREATE SINK whole USING json OPTIONS (path 'output/whole', changes 'log');
CREATE SINK latest USING json OPTIONS (path 'output/latest', changes 'log');

INSERT INTO interval_left
SELECT STREAM o.id, o.customer, o.amount, d.courier FROM orders o
LEFT JOIN deliveries d ON o.id = d.id AND d.t BETWEEN o.t AND o.t + INTERVAL 1 MINUTE;

INSERT INTO interval_semi
SELECT STREAM o.id, o.t FROM orders o
LEFT SEMI JOIN deliveries d ON o.id = d.id AND d.t BETWEEN o.t AND o.t + INTERVAL 1 MINUTE;

INSERT INTO interval_full
SELECT STREAM o.id, d.courier, o.amount FROM orders o
FULL JOIN deliveries d
  ON o.customer = d.courier AND o.id < d.id AND d.t BETWEEN o.t - INTERVAL 1 MINUTE AND o.t + INTERVAL 1 MINUTE;

INSERT INTO chain
SELECT STREAM o.id, d.courier, p.paid FROM orders o
JOIN deliveries d ON o.id = d.id AND d.t BETWEEN o.t AND o.t + INTERVAL 1 MINUTE
LEFT JOIN payments p ON o.id = p.id AND p.t BETWEEN d.t AND d.t + INTERVAL 1 MINUTE;

INSERT INTO windows
SELECT STREAM o.id, d.courier FROM orders o WINDOW (COUNT 2) LEFT JOIN deliveries d WINDOW (COUNT 2) ON o.id = d.id;

INSERT INTO partitions
SELECT STREAM o.id, d.id AS delivered FROM orders o WINDOW (COUNT 1 PARTITION BY customer)
JOIN deliveries d WINDOW (DELTA id 2) ON o.customer = d.courier;

INSERT INTO equal_times
SELECT STREAM o.t, o.id, d.courier, p.paid FROM orders o SYNC JOIN deliveries d SYNC JOIN payments p;

INSERT INTO versions
SELECT STREAM o.id, o.t, d.courier FROM orders o
LEFT ASOF JOIN deliveries d MATCH_CONDITION (o.t >= d.t) ON o.customer = d.courier;

INSERT INTO looked_up
SELECT STREAM o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name;

INSERT INTO merged
SELECT TABLE c.name, c.city, z.zone FROM customers c FULL JOIN cities z ON c.city = z.city;

INSERT INTO nested
SELECT TABLE c.name, z.city FROM customers c LEFT JOIN cities z ON c.city < z.city;

INSERT INTO grouped
SELECT TABLE customer, count(*) AS orders, sum(amount) AS amount, avg(id) AS mean, min(t) AS first, max_by(id, t) AS last
FROM orders GROUP BY customer;

INSERT INTO hours
SELECT TABLE window(t, '1 minute').start AS minute, count(*) AS orders, sum(amount) AS amount
FROM orders GROUP BY window(t, '1 minute');

INSERT INTO doubles
SELECT TABLE id % 2 AS half, sum(paid) AS paid, avg(paid) AS mean, stddev_pop(paid) AS off FROM payments GROUP BY id % 2;

INSERT INTO whole
SELECT TABLE count(*) AS orders, sum(paid) AS paid FROM payments WHERE paid > 2;

INSERT INTO latest
SELECT TABLE customer AS _key, id, amount FROM orders GROUP BY customer;
