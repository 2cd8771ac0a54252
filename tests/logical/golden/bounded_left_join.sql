CREATE STREAM orders (
    order_id BIGINT, order_time TIMESTAMP, item_id BIGINT, amount DECIMAL(10,2),
    WATERMARK FOR order_time AS order_time - INTERVAL 5 SECONDS
) USING parquet OPTIONS (path '/data/orders');
CREATE STREAM deliveries (
    order_id BIGINT, delivery_time TIMESTAMP, address STRING, weight DOUBLE,
    WATERMARK FOR delivery_time AS delivery_time - INTERVAL 1 MINUTE
) USING parquet OPTIONS (path '/data/deliveries');
CREATE SINK joined USING parquet OPTIONS (path '/data/joined');
INSERT INTO joined
SELECT STREAM o.order_id, o.order_time, d.delivery_time, upper(d.address) AS `the address`
FROM orders o
LEFT JOIN deliveries d
  ON o.order_id = d.order_id
 AND d.delivery_time BETWEEN o.order_time - INTERVAL 5 MINUTES AND o.order_time + INTERVAL 1 HOUR
 AND o.amount > 10 AND d.address IS NOT NULL
 AND (d.weight < o.item_id OR d.weight IS NULL)
WHERE o.item_id > 0 AND d.delivery_time IS NULL;
