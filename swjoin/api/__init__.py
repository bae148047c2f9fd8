"""The Python API: `import swjoin` has all of it by name, and imports it when it is used.

What: whole tables (`tables`), streams in this process (`streaming`), runs of the cluster (`runs`), over one embedded engine
(`embedded_join`).
Why: a join from Python should take five lines and no files.
Stays out: the command line (`cli`), roles (`cluster`).
"""
