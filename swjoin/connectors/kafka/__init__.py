"""Kafka topics as streams and as sinks."""
