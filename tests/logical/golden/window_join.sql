CREATE STREAM vwaps (ticker STRING, vwap DECIMAL(10,2), seq BIGINT) ORDER BY seq;
CREATE STREAM quotes (ticker STRING, ask DECIMAL(10,2), size INT, day DATE, seq BIGINT) ORDER BY seq;
CREATE SINK bargains (ticker STRING, vwap DECIMAL(10,2), gain DOUBLE) USING parquet OPTIONS (path 'bargains');
CREATE SINK alone USING parquet OPTIONS (path 'alone');
SET watersmeet.window.emit_discarded = true;
INSERT INTO bargains
SELECT STREAM (v.vwap - q.ask) * q.size AS gain
FROM vwaps v WINDOW (COUNT 1 PARTITION BY ticker PARTITION AGE 1h) FULL JOIN quotes q WINDOW (DELTA day 2 DAYS)
  ON v.ticker = q.ticker AND v.vwap > q.ask AND q.size > 0
PAD LEFT WITH (vwap 0, ticker 'none') PAD RIGHT ZEROS
WHERE q.size < 1000;
SELECT STREAM v.ticker, _trigger.side, _seq, _last
FROM vwaps v WINDOW (TIME 10s PARTITION BY ticker TUPLE COUNT 1000) RIGHT JOIN quotes q WINDOW (COUNT 0)
WHERE _last
UNMATCHED RIGHT INTO alone;
