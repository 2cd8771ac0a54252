-- Each order with its delivery of the next two hours, if there is one. Both queries below read it.
CREATE VIEW shipped AS
SELECT STREAM o.order_id, o.customer_id, o.item, o.amount, o.order_time, d.courier
FROM orders o
LEFT JOIN deliveries d
  ON o.order_id = d.order_id
  AND d.delivery_time BETWEEN o.order_time AND o.order_time + INTERVAL 2 HOURS;

-- ... and with the customer as the table has it when the order is settled.
INSERT INTO shipments
SELECT STREAM s.order_id, s.item, c.name, c.city, s.courier
FROM shipped s
LEFT JOIN customers c ON s.customer_id = c.id;

-- Per city of the customer: orders, those delivered in time, and what they were worth. A table; the sink holds it as it is.
INSERT INTO cities
SELECT TABLE c.city, count(*) AS orders, count(s.courier) AS delivered, sum(s.amount) AS amount
FROM shipped s
JOIN customers c ON s.customer_id = c.id
GROUP BY c.city;

-- Orders per hour. A group leaves the state once the watermark has passed the end of its hour; the sink gets the changes.
INSERT INTO hours
SELECT TABLE window(order_time, '1 hour').start AS hour, count(*) AS orders, sum(amount) AS amount
FROM orders
GROUP BY window(order_time, '1 hour');
