CREATE STREAM a (id BIGINT) USING json OPTIONS (path '/in);
CREATE SINK b USING json OPTIONS (path '/out');
INSERT INTO b SELECT STREAM a.id FRM a;
INSERT INTO b SELECT STREAM `a.id FROM a;
SET watersmeet.shards : 4;
