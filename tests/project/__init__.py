"""Tests of what lies around the package: layout, documents, packaging, benchmarks, figures, test tools."""
