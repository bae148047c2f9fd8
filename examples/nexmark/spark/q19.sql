-- q19 in Spark SQL, which has no ROW_NUMBER over streams: the first ten of a sorted array.
SELECT auction, top.bidder, -top.minus AS price, top.channel, top.url, top.date_time, top.extra, w.start AS window_start,
       w.end AS window_end, place + 1 AS rank_number
FROM (
  SELECT auction, window(date_time, '1 minute') AS w,
         sort_array(collect_list(struct(-price AS minus, date_time, bidder, channel, url, extra))) AS bids
  FROM bid
  GROUP BY auction, window(date_time, '1 minute')
) LATERAL VIEW posexplode(slice(bids, 1, 10)) AS place, top
