-- Orders of a shop, as they arrive in a topic: up to ten minutes out of order in each of its partitions.
CREATE STREAM orders (
  order_id BIGINT,
  customer STRING,
  item STRING,
  amount DECIMAL(10, 2),
  order_time TIMESTAMP,
  WATERMARK FOR order_time AS order_time - INTERVAL 10 MINUTES
) USING kafka OPTIONS (
  kafka.bootstrap.servers '${env:DEMO_BROKER}',
  subscribe 'orders',
  startingOffsets 'earliest',
  value.format 'json',
  maxOffsetsPerTrigger '1500'
);

CREATE STREAM deliveries (
  delivery_id BIGINT,
  order_id BIGINT,
  courier STRING,
  delivery_time TIMESTAMP,
  WATERMARK FOR delivery_time AS delivery_time - INTERVAL 10 MINUTES
) USING kafka OPTIONS (
  kafka.bootstrap.servers '${env:DEMO_BROKER}',
  subscribe 'deliveries',
  startingOffsets 'earliest',
  value.format 'json',
  maxOffsetsPerTrigger '1500'
);

-- A topic with three partitions, made if it is not there. Who reads what is committed sees every row once.
CREATE SINK delivered USING kafka OPTIONS (
  kafka.bootstrap.servers '${env:DEMO_BROKER}',
  topic 'delivered',
  value.format 'json',
  partitions '3',
  delivery 'exactly_once'
);

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
