"""Sources and sinks, a folder per technology; the protocols `source.Source` and `sink.Sink` that they implement.

Stays out: the order of both streams, late rows, joining (`cluster.master`).
"""
