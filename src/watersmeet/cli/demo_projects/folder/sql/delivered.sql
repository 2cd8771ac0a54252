-- Orders of a shop, as they arrive: up to ten minutes out of order.
CREATE STREAM orders (
  order_id BIGINT,
  customer STRING,
  item STRING,
  amount DECIMAL(10, 2),
  order_time TIMESTAMP,
  WATERMARK FOR order_time AS order_time - INTERVAL 10 MINUTES
) USING json OPTIONS (path 'data/orders', maxFilesPerTrigger '1');

CREATE STREAM deliveries (
  delivery_id BIGINT,
  order_id BIGINT,
  courier STRING,
  delivery_time TIMESTAMP,
  WATERMARK FOR delivery_time AS delivery_time - INTERVAL 10 MINUTES
) USING json OPTIONS (path 'data/deliveries', maxFilesPerTrigger '1');

CREATE SINK delivered USING parquet OPTIONS (path 'output/delivered');

-- Every order with its deliveries of the next two hours. An order without one comes out too, padded with NULLs,
-- as soon as the watermark of deliveries proves that none can come any more.
INSERT INTO delivered
SELECT STREAM
  o.order_id,
  o.customer,
  o.item,
  o.amount,
  o.order_time,
  d.delivery_id,
  d.courier,
  d.delivery_time
FROM orders o
LEFT JOIN deliveries d
  ON o.order_id = d.order_id
  AND d.delivery_time BETWEEN o.order_time AND o.order_time + INTERVAL 2 HOURS;
