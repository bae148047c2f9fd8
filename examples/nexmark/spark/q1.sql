-- q1 in Spark SQL: a literal with a point is a decimal there.
SELECT auction, bidder, 0.908D * price AS price, date_time, extra
FROM bid
