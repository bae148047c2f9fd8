-- q19: the ten highest bids of every auction. Departs: per minute; equal prices by time.
SELECT *
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, auction ORDER BY price DESC, date_time, bidder, channel, url) AS rank_number
  FROM TUMBLE(bid, date_time, INTERVAL '1' MINUTE)
) ranked
WHERE rank_number <= 10
