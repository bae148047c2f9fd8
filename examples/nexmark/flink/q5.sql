-- q5 in Flink SQL.
WITH counted AS (
  SELECT auction, count(*) AS num, window_start, window_end
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end
),
most AS (
  SELECT max(num) AS maxn, window_start, window_end
  FROM counted
  GROUP BY window_start, window_end
)
SELECT c.auction, c.num
FROM counted c JOIN most m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num >= m.maxn
