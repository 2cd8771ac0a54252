-- What was shown to whom, and what was clicked. Clicks reach us later than impressions.
CREATE STREAM impressions (
  user_id STRING,
  ad_id BIGINT,
  is_test BOOLEAN,
  shown TIMESTAMP,
  WATERMARK FOR shown AS shown - INTERVAL 1 MINUTE
) USING json OPTIONS (path 'data/impressions');

CREATE STREAM clicks (
  user_id STRING,
  ad_id BIGINT,
  clicked TIMESTAMP,
  WATERMARK FOR clicked AS clicked - INTERVAL 5 MINUTES
) USING json OPTIONS (path 'data/clicks');

CREATE SINK seen USING json OPTIONS (path 'output/seen');
CREATE SINK unseen USING json OPTIONS (path 'output/unseen');
