SET watersmeet.table.load = first;

CREATE TABLE customers (
  id BIGINT,
  name STRING,
  city STRING,
  discount DECIMAL(4, 2),
  PRIMARY KEY (id)
) CHANGES FROM debezium USING kafka OPTIONS (
  kafka.bootstrap.servers '${env:KAFKA}',
  subscribe 'shop.public.customers',
  startingOffsets 'earliest',
  debezium.decimal 'string'
);

CREATE STREAM orders (
  order_id BIGINT,
  customer_id BIGINT,
  amount DECIMAL(10, 2),
  order_time TIMESTAMP,
  WATERMARK FOR order_time AS order_time - INTERVAL 5 MINUTES
) USING kafka OPTIONS (
  kafka.bootstrap.servers '${env:KAFKA}',
  subscribe 'orders',
  startingOffsets 'earliest',
  value.format 'json'
);

CREATE SINK priced USING postgres OPTIONS (url '${env:POSTGRES}', table 'priced');

INSERT INTO priced
SELECT STREAM o.order_id, o.order_time, c.name, c.city, o.amount, c.discount
FROM orders o
LEFT JOIN customers c ON o.customer_id = c.id;
