CREATE STREAM customers (id BIGINT) CHANGES FROM debezium;
SELECT STREAM a.x FROM a SYNC JOIN b ON a.x = b.x;
SELECT TABLE a.x, sum(CASE WHEN count(*) > 1 THEN 1 END) FROM a GROUP BY a.x;
SELECT STREAM a.x FROM a JOIN c ON a.x = c.x SYNC JOIN b;
SELECT STREAM a.x FROM a, b ON a.x = b.x;
SELECT STREAM o.x FROM orders o, payments AS p RIGHT JOIN refunds AS r ON r.id = p.id WHERE o.id = p.order_id;
SELECT STREAM o.x FROM orders o NATURAL JOIN items USING (id);
DROP STREAM a;
