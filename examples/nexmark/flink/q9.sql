-- q9 in Flink SQL: the first rows are within windows of the auctions' beginning, so that they are final.
WITH pairs AS (
  SELECT a.id, a.item_name, a.seller, a.category, a.date_time, a.expires,
         b.auction, b.bidder, b.price, CAST(b.date_time AS TIMESTAMP(3)) AS bid_date_time
  FROM auction a JOIN bid b
    ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10' SECOND AND b.date_time <= a.expires
)
SELECT id, item_name, seller, category, date_time, expires, auction, bidder, price, bid_date_time
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, id ORDER BY price DESC, bid_date_time, bidder) AS rownum
  FROM TABLE(TUMBLE(TABLE pairs, DESCRIPTOR(date_time), INTERVAL '1' SECOND))
) won
WHERE rownum <= 1
