-- q20 in Flink SQL: a row has one time attribute.
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra,
       a.item_name, a.initial_bid, a.reserve, CAST(a.date_time AS TIMESTAMP(3)) AS a_date_time, a.expires, a.seller, a.category
FROM bid b JOIN auction a
  ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10' SECOND
WHERE a.category = 10
