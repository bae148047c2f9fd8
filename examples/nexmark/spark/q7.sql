-- q7 in Spark SQL: the bound of time is on the window's time, which is a microsecond before its end.
SELECT b.auction, b.price, b.bidder, b.date_time
FROM bid b JOIN (
  SELECT maxprice, window_time(w) AS last
  FROM (
    SELECT max(price) AS maxprice, window(date_time, '10 seconds') AS w
    FROM bid
    GROUP BY window(date_time, '10 seconds')
  )
) m
  ON b.price = m.maxprice AND b.date_time > m.last - INTERVAL '10' SECOND AND b.date_time <= m.last
