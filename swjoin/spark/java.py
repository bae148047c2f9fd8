"""Finding a Java that Spark accepts.

What: `find_java`, `java_major`.
Why: Spark's own message for a missing or old Java does not say what to install.
Stays out: starting Spark (`spark.session`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from swjoin.core.errors import UserError

JAVA_MAJOR = 17


def java_major(text: str) -> int | None:
    """Major version from the output of `java -version`; None when there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """A Java of at least 17 from JAVA_HOME or PATH. UserError says how to get one."""
    home = environment.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        candidates.append(Path(on_path))
    seen = []
    for java in candidates:
        try:
            done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        except OSError:
            continue
        major = java_major(done.stderr + done.stdout)
        if major is not None and major >= JAVA_MAJOR:
            return java
        seen.append(f"{java} is version {major}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise UserError(
        f"Spark needs Java {JAVA_MAJOR} or newer{found}; install openjdk-{JAVA_MAJOR}-jre-headless or set JAVA_HOME"
    )
