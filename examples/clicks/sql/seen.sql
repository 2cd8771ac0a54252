-- Every impression with its clicks of the next ten minutes; one that nobody clicked comes out alone.
INSERT INTO seen
SELECT STREAM i.user_id, i.ad_id, i.shown, c.clicked
FROM impressions i
LEFT JOIN clicks c
  ON i.user_id = c.user_id
  AND i.ad_id = c.ad_id
  AND c.clicked BETWEEN i.shown AND i.shown + INTERVAL 10 MINUTES
WHERE NOT i.is_test;

-- Clicks on what was never shown.
INSERT INTO unseen
SELECT STREAM c.user_id, c.ad_id, c.clicked
FROM clicks c
LEFT JOIN impressions i
  ON i.user_id = c.user_id
  AND i.ad_id = c.ad_id
  AND c.clicked BETWEEN i.shown AND i.shown + INTERVAL 10 MINUTES
WHERE i.ad_id IS NULL;
