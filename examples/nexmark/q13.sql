-- q13: bids with a value for their auction. The side input is a static table, read once; as published, a file that may change.
SELECT b.auction, b.bidder, b.price, b.date_time, s.value
FROM bid b JOIN side_input s ON mod(b.auction, 10000) = s.key
