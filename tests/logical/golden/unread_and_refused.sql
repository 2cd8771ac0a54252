CREATE STREAM clicks (id BIGINT, clicked DATETIME, WATERMARK FOR clicked AS clicked - INTERVAL 10 SECONDS);
CREATE STREAM orders (id BIGINT, ordered TIMESTAMP, WATERMARK FOR ordered AS ordered - INTERVAL 10 SECONDS);
CREATE STREAM views (id BIGINT, seen TIMESTAMP, WATERMARK FOR seen AS seen - INTERVAL 10 SECONDS);
CREATE TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id)
) USING json LOCATION '/x';
CREATE SINK out USING json OPTIONS (path '/out)';
CREATE SINK out2 USING json OPTIONS (path '/out') oops;
CREATE VIEW v AS SELECT STREAM * FORM clicks;
INSERT INTO out SELECT STREAM c.id, o.orderd FROM clicks c LEFT JOIN orders o ON c.id = o.id AND o.ordered >= c.clicked;
INSERT INTO out2 SELECT STREAM v.id, w.orderd FROM views v LEFT JOIN orders w ON v.id = w.id AND w.ordered >= v.seen;
INSERT INTO out2 SELECT STREAM v.id, cu.nam FROM views v JOIN customers cu ON v.id = cu.id
INSERT INTO out3 SELECT TABLE cu.name, count(*) FROM views v JOIN customers cu ON v.id = cu.id GROUP BY cu.name;
SELECT STREAM x.id FROM v x;
SELECT STREAM x.id FROM vv x;
SELECT TABLE cu.name, count(*) FROM v JOIN customers cu WITHIN 1h ON v.id = cu.id GROUP BY cu.name;
