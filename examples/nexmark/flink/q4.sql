-- q4 in Flink SQL: the auctions' last prices are grouped within the windows, so that rows are final; an average of integers is
-- an integer there.
WITH pairs AS (
  SELECT a.id, a.category, a.date_time, b.price
  FROM auction a JOIN bid b
    ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10' SECOND AND b.date_time <= a.expires
),
closed AS (
  SELECT id, category, window_start, window_end, max(price) AS final
  FROM TABLE(TUMBLE(TABLE pairs, DESCRIPTOR(date_time), INTERVAL '1' MINUTE))
  GROUP BY id, category, window_start, window_end
)
SELECT category, window_start, avg(CAST(final AS DOUBLE)) AS final
FROM closed
GROUP BY category, window_start, window_end
