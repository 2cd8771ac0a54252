-- The queries of queries.sql, as somebody else would write them: other aliases, other order and layout, an option of
-- speed. None of it changes what a state means.
create stream orders (
  t timestamp, id bigint, customer string, amount decimal(10, 2), watermark for t as t - interval 10 seconds
) using json options (path 'data/orders', maxFilesPerTrigger '7');
create stream deliveries (id bigint, t timestamp, courier string, watermark for t as t - interval 10 seconds)
  using json options (path 'data/deliveries');
create stream payments (
  id bigint, paid double, t timestamp, watermark for t as t - interval 10 seconds
) using json options (path 'data/payments');
create table customers (city string, name string, primary key (name)) using json options (path 'data/customers');
create table cities (city string, zone bigint, primary key (city)) using json options (path 'data/cities');

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
SELECT STREAM sent.courier, asked.amount, asked.customer, asked.id -- the other way round
FROM orders asked
LEFT JOIN deliveries sent ON asked.id = sent.id AND sent.t BETWEEN asked.t AND asked.t + INTERVAL 60 SECONDS;

INSERT INTO interval_semi
SELECT STREAM a.t, a.id FROM orders a
LEFT SEMI JOIN deliveries b ON a.id = b.id AND b.t >= a.t AND b.t <= a.t + INTERVAL 1 MINUTE;

INSERT INTO interval_full
SELECT STREAM a.amount, b.courier, a.id FROM orders AS a
FULL OUTER JOIN deliveries AS b
  ON a.customer = b.courier AND a.id < b.id AND b.t BETWEEN a.t - INTERVAL 1 MINUTE AND a.t + INTERVAL 1 MINUTE;

INSERT INTO chain
SELECT STREAM c.paid, b.courier, a.id FROM orders a
JOIN deliveries b ON a.id = b.id AND b.t BETWEEN a.t AND a.t + INTERVAL 1 MINUTE
LEFT JOIN payments c ON a.id = c.id AND c.t BETWEEN b.t AND b.t + INTERVAL 1 MINUTE;

INSERT INTO windows
SELECT STREAM b.courier, a.id FROM orders a WINDOW (COUNT 2) LEFT JOIN deliveries b WINDOW (COUNT 2) ON a.id = b.id;

INSERT INTO partitions
SELECT STREAM b.id AS delivered, a.id FROM orders a WINDOW (COUNT 1 PARTITION BY a.customer)
JOIN deliveries b WINDOW (DELTA b.id 2) ON a.customer = b.courier;

INSERT INTO equal_times
SELECT STREAM c.paid, b.courier, a.id, a.t FROM orders a SYNC JOIN deliveries b SYNC JOIN payments c;

INSERT INTO versions
SELECT STREAM b.courier, a.t, a.id FROM orders a
LEFT ASOF JOIN deliveries b MATCH_CONDITION (a.t >= b.t) ON a.customer = b.courier;

INSERT INTO looked_up
SELECT STREAM b.city, a.id FROM orders a LEFT JOIN customers b ON a.customer = b.name;

INSERT INTO merged
SELECT TABLE b.zone, a.city, a.name FROM customers a FULL JOIN cities b ON a.city = b.city;

INSERT INTO nested
SELECT TABLE b.city, a.name FROM customers a LEFT JOIN cities b ON a.city < b.city;

INSERT INTO grouped
SELECT TABLE max_by(a.id, a.t) AS last, min(a.t) AS first, avg(a.id) AS mean, sum(a.amount) AS amount, count(*) AS orders,
  a.customer
FROM orders a GROUP BY a.customer;

INSERT INTO hours
SELECT TABLE sum(a.amount) AS amount, count(*) AS orders, window(a.t, '1 minute').start AS minute
FROM orders a GROUP BY window(a.t, '1 minute');

INSERT INTO doubles
SELECT TABLE stddev_pop(a.paid) AS off, avg(a.paid) AS mean, sum(a.paid) AS paid, a.id % 2 AS half
FROM payments a GROUP BY a.id % 2;

INSERT INTO whole
SELECT TABLE sum(a.paid) AS paid, count(*) AS orders FROM payments a WHERE a.paid > 2;

INSERT INTO latest
SELECT TABLE a.amount, a.id, a.customer AS _key FROM orders a GROUP BY a.customer;
