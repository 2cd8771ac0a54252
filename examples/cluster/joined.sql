CREATE STREAM orders (
  id BIGINT,
  ordered TIMESTAMP,
  amount INT,
  WATERMARK FOR ordered AS ordered - INTERVAL 10 MINUTES
) USING parquet OPTIONS (path 'data/orders', maxFilesPerTrigger '2');

CREATE STREAM deliveries (
  order_id BIGINT,
  delivered TIMESTAMP,
  courier STRING,
  WATERMARK FOR delivered AS delivered - INTERVAL 10 MINUTES
) USING parquet OPTIONS (path 'data/deliveries', maxFilesPerTrigger '2');

CREATE SINK joined USING parquet OPTIONS (path 'joined');

INSERT INTO joined
SELECT STREAM o.id, o.ordered, o.amount, d.delivered, d.courier
FROM orders o
LEFT JOIN deliveries d
  ON o.id = d.order_id
  AND d.delivered BETWEEN o.ordered AND o.ordered + INTERVAL 1 HOUR;
