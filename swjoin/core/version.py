"""The version of the package.

What: `__version__`.
Why: checkpoints, reports and ranks compare it; rooms below the public face cannot ask that.
Stays out: versions of formats (`connectors.files.run_folder`, `checkpoint.store`).
"""

__version__ = "0.1.0"
