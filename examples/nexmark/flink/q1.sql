-- q1 in Flink SQL: a literal with a point is a decimal there.
SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price, date_time, extra
FROM bid
