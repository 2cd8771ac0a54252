-- Customers are a table: a later row of an id takes the place of the earlier one, and a row with "_change": "-" deletes.
CREATE TABLE customers (
  id BIGINT,
  name STRING,
  city STRING,
  PRIMARY KEY (id)
) USING json OPTIONS (path 'data/customers');

CREATE STREAM orders (
  order_id BIGINT,
  customer_id BIGINT,
  item STRING,
  amount DECIMAL(10, 2),
  order_time TIMESTAMP,
  WATERMARK FOR order_time AS order_time - INTERVAL 5 MINUTES
) USING json OPTIONS (path 'data/orders');

CREATE STREAM deliveries (
  order_id BIGINT,
  courier STRING,
  delivery_time TIMESTAMP,
  WATERMARK FOR delivery_time AS delivery_time - INTERVAL 5 MINUTES
) USING json OPTIONS (path 'data/deliveries');

CREATE SINK shipments USING json OPTIONS (path 'output/shipments');
CREATE SINK cities USING json OPTIONS (path 'output/cities', changes 'snapshot');
CREATE SINK hours USING json OPTIONS (path 'output/hours', changes 'log');
