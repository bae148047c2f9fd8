-- q13 in Flink SQL: a lookup join, as published.
SELECT b.auction, b.bidder, b.price, b.date_time, s.`value`
FROM (SELECT *, PROCTIME() AS p_time FROM bid) b
JOIN side_input FOR SYSTEM_TIME AS OF b.p_time AS s ON mod(b.auction, 10000) = s.key
