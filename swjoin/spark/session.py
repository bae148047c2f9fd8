"""A Spark session that works out of the box, local or on a cluster.

What: `open_session(master, app, more)`, a context manager; `drop_connection`, after an interruption.
Why: Java, Arrow, time zone and loopback settings belong in one place.
Stays out: what is computed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.core.errors import RunFailed, UserError, how_to_install
from swjoin.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def open_session(master: str | None, app: str, more: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session on `master` (default local[*]); stopped at the end unless it was running before. more: further settings.

    UserError without pyspark or Java 17; RunFailed, in one line, when Spark fails. When an interruption (KeyboardInterrupt, a
    test's time limit) passes through, the session can be used afterwards.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise UserError(f"pyspark is missing; {how_to_install('spark')}") from None
    java = find_java()
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parents[1]))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    running = SparkContext._active_spark_context  # the active session is one of a thread, and of its connection
    local = master is None or master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        paths = [str(_PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    builder = SparkSession.builder.master(master or "local[*]").appName(app)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "true" if sys.stderr.isatty() and _LOG.isEnabledFor(logging.WARNING) else "false",
        "spark.log.level": "ERROR",
    }
    if local:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 2)),
        }
    for key, value in (settings | dict(more or {})).items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
    except Exception as error:  # Py4J and Java errors have no common base
        raise RunFailed(f"Spark did not start on {master or 'local[*]'}: {' '.join(str(error).split())[:300]}") from None
    try:
        yield session
    except (PySparkException, Py4JError) as error:
        raise RunFailed(f"Spark: {' '.join(str(error).split())[:500]}") from error
    except BaseException as stop:
        if not isinstance(stop, Exception):
            drop_connection(session)
        raise
    finally:
        if running is None:
            session.stop()


def drop_connection(session: SparkSession) -> None:
    """Close this thread's connection to the JVM; the next call makes a new one.

    The answer to a call that was interrupted is still to come on that connection: the next call would take it for its own.
    """
    client: Any = session.sparkContext._gateway._gateway_client
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    if connection is not None:
        connection.close()
