-- q5 in Spark SQL.
WITH counted AS (
  SELECT auction, count(*) AS num, window(date_time, '10 seconds', '2 seconds') AS w
  FROM bid
  GROUP BY auction, window(date_time, '10 seconds', '2 seconds')
),
most AS (
  SELECT max(num) AS maxn, w
  FROM counted
  GROUP BY w
)
SELECT c.auction, c.num
FROM counted c JOIN most m ON c.w = m.w AND c.num >= m.maxn
