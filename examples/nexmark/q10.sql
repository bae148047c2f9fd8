-- q10: bids with the day and the minute that a log is divided by.
SELECT auction, bidder, price, date_time, extra,
       CAST(date_trunc('day', date_time) AS DATE) AS day, EXTRACT(hour FROM date_time) * 60 + EXTRACT(minute FROM date_time) AS minute
FROM bid
