-- q19 in Flink SQL: both edges of the window are keys.
SELECT auction, bidder, price, channel, url, date_time, extra, window_start, window_end, rank_number
FROM (
  SELECT *, ROW_NUMBER() OVER (
    PARTITION BY window_start, window_end, auction ORDER BY price DESC, date_time, bidder, channel, url
  ) AS rank_number
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' MINUTE))
) ranked
WHERE rank_number <= 10
