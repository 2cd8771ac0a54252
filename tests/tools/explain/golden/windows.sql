CREATE STREAM bids (k STRING, u STRING, v BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 1 MINUTE)
  USING json OPTIONS (path '/bids');
CREATE TABLE prices (id BIGINT, item STRING, price BIGINT, PRIMARY KEY (id)) USING delta OPTIONS (path '/prices');
CREATE SINK sums USING json OPTIONS (path '/sums');
CREATE SINK too_late USING json OPTIONS (path '/late');

INSERT INTO sums
SELECT STREAM k, u, sum(v) OVER (PARTITION BY k ORDER BY t) AS total, lag(v) OVER w AS before, count(*) OVER w AS n,
  max(v) OVER (ORDER BY t ROWS 9 PRECEDING) AS most
FROM bids WHERE v < 100 WINDOW w AS (PARTITION BY k, upper(u) ORDER BY t)
LATE INTO too_late;

SELECT TABLE id, sum(price) OVER (PARTITION BY item) AS total, lead(id) OVER (ORDER BY price DESC, id NULLS LAST) AS next
FROM prices;
