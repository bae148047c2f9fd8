-- q9 in Spark SQL, which has no ROW_NUMBER over streams: the least of a structure, within windows of the auctions' beginning.
SELECT id, won.item_name, won.seller, won.category, won.date_time, won.expires, id AS auction, won.bidder,
       -won.minus AS price, won.bid_date_time
FROM (
  SELECT a.id, min(struct(-b.price AS minus, b.date_time AS bid_date_time, b.bidder,
                          a.item_name, a.seller, a.category, a.date_time, a.expires)) AS won
  FROM auction a JOIN bid b
    ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10' SECOND AND b.date_time <= a.expires
  GROUP BY a.id, window(a.date_time, '1 second')
)
