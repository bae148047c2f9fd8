-- Departures from New York in 2013 by hour and airport, with the hour's weather there.
WITH flown AS (
  SELECT f.origin, f.scheduled, f.dep_delay, w.visib, w.precip, w.wind_speed
  FROM flights f JOIN weather w
    ON f.origin = w.origin AND f.scheduled >= w.hour AND f.scheduled < w.hour + INTERVAL '1' HOUR
)
SELECT origin, window_start AS hour,
       count(*) AS flights,
       count(*) FILTER (WHERE dep_delay IS NULL) AS cancelled,
       count(*) FILTER (WHERE dep_delay > 60) AS an_hour_late,
       avg(dep_delay) AS mean_delay, max(dep_delay) AS longest_delay,
       min(visib) AS visibility, max(precip) AS rain, max(wind_speed) AS wind
FROM TUMBLE((SELECT * FROM flown), scheduled, INTERVAL '1' HOUR)
GROUP BY origin, window_start, window_end
