-- Departures from New York in 2013, at most ten minutes apart, to places about as far away, by different carriers:
-- how much later than its neighbours was each carrier?
WITH pairs AS (
  SELECT f.carrier, g.carrier AS other, f.scheduled, f.dep_delay - g.dep_delay AS more
  FROM flights f JOIN flights g
    ON abs(g.distance - f.distance) <= 25
    AND g.scheduled BETWEEN f.scheduled - INTERVAL '10' MINUTE AND f.scheduled + INTERVAL '10' MINUTE
    AND f.carrier <> g.carrier
)
SELECT carrier, other, window_start AS since, count(more) AS pairs, avg(more) AS more, count(*) FILTER (WHERE more > 0) AS later
FROM TUMBLE((SELECT * FROM pairs), scheduled, INTERVAL '7' DAY)
GROUP BY carrier, other, window_start, window_end
