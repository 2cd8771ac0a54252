CREATE STREAM clicks (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 10);
CREATE STREAM views (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 10);
CREATE STREAM sales (id BIGINT, t BIGINT, price DOUBLE, WATERMARK FOR t AS t - 0);
SELECT STREAM *
FROM views v JOIN clicks c WITHIN 300 ON v.id = c.id
FULL JOIN sales s ON s.t > c.t AND s.t < v.t + 3600 AND s.id = c.id;
