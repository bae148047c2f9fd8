-- Companies whose share price doubles within 20 days, and that win a government contract within 20 days from then (KATTS).
WITH doubled AS (
  SELECT symbol, window_end AS until, max(price) / min(price) AS ratio
  FROM HOP(prices, ts, INTERVAL '1' DAY, INTERVAL '20' DAY)
  GROUP BY symbol, window_start, window_end
  HAVING max(price) / min(price) > 2
)
SELECT n.company AS company, d.until AS doubled, d.ratio AS ratio, c.ts AS won, c.amount AS amount
FROM doubled d JOIN companies n ON d.symbol = n.symbol
JOIN contracts c ON n.company = c.company AND c.ts BETWEEN d.until AND d.until + INTERVAL '20' DAY
