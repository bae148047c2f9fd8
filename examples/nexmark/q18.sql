-- q18: the last bid of every bidder on every auction. Departs: per minute; equal times by price.
SELECT auction, bidder, price, channel, url, date_time, extra
FROM TUMBLE(bid, date_time, INTERVAL '1' MINUTE)
QUALIFY ROW_NUMBER() OVER (
  PARTITION BY window_start, window_end, bidder, auction ORDER BY date_time DESC, price DESC, channel, url
) <= 1
