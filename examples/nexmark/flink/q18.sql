-- q18 in Flink SQL.
SELECT auction, bidder, price, channel, url, date_time, extra
FROM (
  SELECT *, ROW_NUMBER() OVER (
    PARTITION BY window_start, window_end, bidder, auction ORDER BY date_time DESC, price DESC, channel, url
  ) AS rownum
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' MINUTE))
) ranked
WHERE rownum <= 1
