"""How the gateways of a job read its inputs, for `explain` and `plan`.

What: `fitted`: the job with as many gateways as its inputs have splits for, and sentences about that.
Why: an input without splits is read by one gateway, and a run uses no more gateways than there are splits; both are to be known
before the run is started.
Stays out: splits (`connectors`), dealing (`cluster.master.split_dealer`), the other sections of `explain`.
"""

from __future__ import annotations

from dataclasses import replace

from swjoin.config.job import Job
from swjoin.connectors.source import Source, is_split
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import SwjoinError


def fitted(job: Job) -> tuple[Job, tuple[str, ...]]:
    """Reads footers of files. Nothing to say of one gateway, or of files that cannot be read yet."""
    from swjoin.runtime.open import input_splits, instances_of, open_job_sources, open_plan_sources, sized, usable_gateways

    count, config, names = job.config.gateway_count, job.config, list(STREAM_NAMES)
    if count == 1:
        return job, ()
    if config.live:
        topics, pushed = (any(getattr(side, kind) for side in config.streams) for kind in ("kafka", "flight"))
        about = []
        if topics:
            about.append(
                f"Gateway g of {count} reads the partitions g, g + {count}, ... of each topic; fewer read if there are fewer."
            )
        if pushed:
            about.append(f"Each of {count} gateways has an endpoint, and reads the producers that are sent to it.")
        return job, tuple(about)
    sources: tuple[Source, ...] = ()
    try:
        instances = instances_of(sized(job, 1), 1)
        if instances is None:
            sources = open_job_sources(job)
        else:
            config, names = instances.config_of_gateway, [source.name for source in instances.stages.sources]
            sources = open_plan_sources(job, instances.logical, instances.columns.read)
        splits = input_splits(config, sources)
        ways = [f"{name} {_way(source, len(parts))}" for name, source, parts in zip(names, sources, splits, strict=True)]
    except SwjoinError as error:
        return job, (f"How {count} gateways share the inputs is not known yet: {error}.",)
    finally:
        for source in sources:
            source.close()
    used = usable_gateways(config, splits)
    said = f"The master deals out the splits of each input in their order, as gateways ask: {'; '.join(ways)}."
    fewer = [f"{count} gateways are configured: as no input has more splits, {used} will read."] if used < count else []
    return replace(job, config=job.config.with_gateways(used)), (said, *fewer)


def _way(source: Source, splits: int) -> str:
    """How an input is read."""
    why = source.why_whole if is_split(source) else "it has no splits"
    if why is not None:
        return f"is read by one gateway ({why})"
    return f"has {splits:,} split{'' if splits == 1 else 's'}"
