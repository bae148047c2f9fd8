-- q16 in Spark SQL, which has no DISTINCT over streams: sizes of sets.
SELECT channel, window.start AS day, max(date_trunc('minute', date_time)) AS minute,
       count(*) AS total_bids,
       count(*) FILTER (WHERE price < 10000) AS rank1_bids,
       count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
       count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
       size(collect_set(bidder)) AS total_bidders,
       size(collect_set(bidder) FILTER (WHERE price < 10000)) AS rank1_bidders,
       size(collect_set(bidder) FILTER (WHERE price >= 10000 AND price < 1000000)) AS rank2_bidders,
       size(collect_set(bidder) FILTER (WHERE price >= 1000000)) AS rank3_bidders,
       size(collect_set(auction)) AS total_auctions,
       size(collect_set(auction) FILTER (WHERE price < 10000)) AS rank1_auctions,
       size(collect_set(auction) FILTER (WHERE price >= 10000 AND price < 1000000)) AS rank2_auctions,
       size(collect_set(auction) FILTER (WHERE price >= 1000000)) AS rank3_auctions
FROM bid
GROUP BY channel, window(date_time, '1 day')
