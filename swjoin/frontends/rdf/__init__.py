"""RDF: streams and graphs of triples, and the CQELS subset of SPARQL over them.

What: reading triples into codes (`triples`, `ntriples`), the terms of the codes (`dictionary`, `term_values`); the language.
Why: rows of a plan are numbers; text of RDF becomes codes where it enters and text again where results leave.
Stays out: running a plan (`cli`, `runtime`).
"""
