"""Sources and sinks, a folder per technology; their protocols, `source.Source` and `sink.Sink`.

Stays out: the common order of both streams, late rows, joining (`cluster.master`).
"""
