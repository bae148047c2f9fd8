-- q10 in Flink SQL.
SELECT auction, bidder, price, date_time, extra,
       CAST(date_time AS DATE) AS `day`, EXTRACT(HOUR FROM date_time) * 60 + EXTRACT(MINUTE FROM date_time) AS `minute`
FROM bid
