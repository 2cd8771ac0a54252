CREATE STREAM customers (id BIGINT) CHANGES FROM debezium;
SELECT STREAM a.x FROM a SYNC JOIN b ON a.x = b.x;
SELECT TABLE a.x, count(*) FROM a GROUP BY a.x HAVING count(*) > 1;
SELECT TABLE a.x, CASE WHEN count(*) > 1 THEN 'many' END FROM a GROUP BY a.x;
SELECT STREAM a.x FROM a JOIN c ON a.x = c.x SYNC JOIN b;
SELECT STREAM a.x FROM a, b;
DROP STREAM a;
