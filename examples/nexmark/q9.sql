-- q9: the winning bid of every auction. Departs: bids within 10 seconds, which is the longest that an auction lasts.
SELECT id, item_name, seller, category, date_time, expires, auction, bidder, price, bid_date_time
FROM (
  SELECT a.id, a.item_name, a.seller, a.category, a.date_time, a.expires,
         b.auction, b.bidder, b.price, b.date_time AS bid_date_time,
         ROW_NUMBER() OVER (PARTITION BY a.id, a.date_time ORDER BY b.price DESC, b.date_time, b.bidder) AS rownum
  FROM auction a JOIN bid b
    ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10' SECOND AND b.date_time <= a.expires
) won
WHERE rownum <= 1
