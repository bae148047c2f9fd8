-- q4 in Spark SQL: the auctions' last prices are grouped within the windows, too.
WITH closed AS (
  SELECT a.id, a.category, window(a.date_time, '1 minute') AS w, max(b.price) AS final
  FROM auction a JOIN bid b
    ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10' SECOND AND b.date_time <= a.expires
  GROUP BY a.id, a.category, window(a.date_time, '1 minute')
)
SELECT category, w.start AS window_start, avg(final) AS final
FROM closed
GROUP BY category, w
