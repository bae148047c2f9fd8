-- q7 in Flink SQL: bids and the highest price meet by their window, which is faster there than by a bound of time.
SELECT b.auction, b.price, b.bidder, b.date_time
FROM (
  SELECT * FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
) b JOIN (
  SELECT max(price) AS maxprice, window_start, window_end
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end
) m
  ON b.price = m.maxprice AND b.window_start = m.window_start AND b.window_end = m.window_end
