SET watersmeet.shard = 4;
SET watersmeet.shards = many;
CREATE STREAM orders (id BIGINT, t TIMESTAMP, WATERMARK FOR time AS time - INTERVAL 5 SECONDS);
CREATE STREAM Orders (id BIGINT);
CREATE STREAM clicks (id BIGINT, t BIGINT, address STRUCT<city: STRING>, WATERMARK FOR t AS t - 5);
INSERT INTO nowhere SELECT STREAM c.idd, t, c.address.town FROM clicks c
JOIN clicks d ON c.id = d.id;
SELECT STREAM o.id, c.id AS o_id, o.id FROM ordrs o JOIN clicks c ON o.id = c.id;
SELECT STREAM * FROM clicks JOIN clicks ON clicks.id = 5;
