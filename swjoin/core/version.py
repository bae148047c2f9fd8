"""The version of the package.

What: `__version__`.
Why: checkpoints, reports and ranks compare it, and lower rooms cannot import the public package.
Stays out: versions of formats (`connectors.files.run_folder`, `checkpoint.store`).
"""

__version__ = "0.1.0"
