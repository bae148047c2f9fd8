-- q7 in Flink SQL: the bound of time is on the window's time attribute, which is a millisecond before its end, so that the join
-- forgets rows.
SELECT b.auction, b.price, b.bidder, b.date_time
FROM bid b JOIN (
  SELECT max(price) AS maxprice, window_time
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end, window_time
) m
  ON b.price = m.maxprice AND b.date_time BETWEEN m.window_time - INTERVAL '9.999' SECOND AND m.window_time
