CREATE STREAM orders (
  order_id BIGINT,
  item STRING,
  order_time TIMESTAMP,
  WATERMARK FOR order_time AS order_time - INTERVAL 5 MINUTES
) USING json OPTIONS (path 'data/orders');

CREATE STREAM deliveries (
  order_id BIGINT,
  courier STRING,
  delivery_time TIMESTAMP,
  WATERMARK FOR delivery_time AS delivery_time - INTERVAL 5 MINUTES
) USING json OPTIONS (path 'data/deliveries');

CREATE SINK joined USING json OPTIONS (path 'output/joined');

INSERT INTO joined
SELECT STREAM o.order_id, o.item, o.order_time, d.courier, d.delivery_time
FROM orders o
LEFT JOIN deliveries d
  ON o.order_id = d.order_id
  AND d.delivery_time BETWEEN o.order_time AND o.order_time + INTERVAL 1 HOUR;
