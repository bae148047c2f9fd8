-- q10 in Spark SQL.
SELECT auction, bidder, price, date_time, extra,
       CAST(date_time AS DATE) AS day, hour(date_time) * 60 + minute(date_time) AS minute
FROM bid
