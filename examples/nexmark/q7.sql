-- q7: the highest bid of every 10 seconds.
SELECT b.auction, b.price, b.bidder, b.date_time
FROM bid b JOIN (
  SELECT max(price) AS maxprice, window_end
  FROM TUMBLE(bid, date_time, INTERVAL '10' SECOND)
  GROUP BY window_start, window_end
) m
  ON b.price = m.maxprice AND b.date_time >= m.window_end - INTERVAL '10' SECOND AND b.date_time < m.window_end
