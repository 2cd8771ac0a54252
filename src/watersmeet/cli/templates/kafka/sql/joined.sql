CREATE STREAM orders (
  order_id BIGINT,
  item STRING,
  order_time TIMESTAMP,
  WATERMARK FOR order_time AS order_time - INTERVAL 5 MINUTES
) USING kafka OPTIONS (
  kafka.bootstrap.servers '${env:KAFKA}',
  subscribe 'orders',
  startingOffsets 'earliest',
  value.format 'json'
);

CREATE STREAM deliveries (
  order_id BIGINT,
  courier STRING,
  delivery_time TIMESTAMP,
  WATERMARK FOR delivery_time AS delivery_time - INTERVAL 5 MINUTES
) USING kafka OPTIONS (
  kafka.bootstrap.servers '${env:KAFKA}',
  subscribe 'deliveries',
  startingOffsets 'earliest',
  value.format 'json'
);

CREATE SINK joined USING kafka OPTIONS (
  kafka.bootstrap.servers '${env:KAFKA}',
  topic 'joined',
  partitions '3',
  delivery 'exactly_once',
  value.format 'json',
  key 'order_id'
);

INSERT INTO joined
SELECT STREAM o.order_id, o.item, o.order_time, d.courier, d.delivery_time
FROM orders o
LEFT JOIN deliveries d
  ON o.order_id = d.order_id
  AND d.delivery_time BETWEEN o.order_time AND o.order_time + INTERVAL 1 HOUR;
