-- q6: the average price of a seller's last 10 auctions. Departs: bids within 10 seconds, which is the longest that an auction
-- lasts; auctions in the order of their beginning; a row from a seller's tenth auction on.
WITH won AS (
  SELECT seller, date_time, price
  FROM (
    SELECT a.id, a.seller, a.date_time, b.price,
           ROW_NUMBER() OVER (PARTITION BY a.id, a.date_time ORDER BY b.price DESC, b.date_time, b.bidder) AS rownum
    FROM auction a JOIN bid b
      ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10' SECOND AND b.date_time <= a.expires
  ) bids
  WHERE rownum <= 1
)
SELECT seller, window_end, avg(price) AS price
FROM ROWS(won, date_time, 10, 1)
GROUP BY seller, window_start, window_end
