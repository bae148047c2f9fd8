-- q3: who sells in some states. Departs: within 10 minutes of the seller's registration; as published, for ever.
SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p
  ON a.seller = p.id AND a.date_time BETWEEN p.date_time AND p.date_time + INTERVAL '10' MINUTE
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
