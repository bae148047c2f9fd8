-- q18 in Spark SQL, which has no ROW_NUMBER over streams: the least of a structure.
SELECT auction, bidder, -last.minus AS price, last.channel, last.url, timestamp_micros(-last.before) AS date_time, last.extra
FROM (
  SELECT auction, bidder, min(struct(-unix_micros(date_time) AS before, -price AS minus, channel, url, extra)) AS last
  FROM bid
  GROUP BY bidder, auction, window(date_time, '1 minute')
)
