-- q4: the average final price of auctions by category. Departs: per minute of the auctions' beginning, bids of 10 seconds.
WITH closed AS (
  SELECT a.id, a.category, a.date_time, max(b.price) AS final
  FROM auction a JOIN bid b
    ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10' SECOND AND b.date_time <= a.expires
  GROUP BY a.id, a.category, a.date_time
)
SELECT category, window_start, avg(final) AS final
FROM TUMBLE(closed, date_time, INTERVAL '1' MINUTE)
GROUP BY category, window_start, window_end
