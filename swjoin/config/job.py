"""A job: a configuration, and where its results and reports go.

What: `Job`, its JSON form for the ranks of one run, and what follows from a job alone; `load_job`, from a configuration or an
earlier run.
Why: the command line, the Python API and every runtime hand over one value.
Stays out: opening sources and sinks (`runtime.open`).
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swjoin.config.loader import config_from_plain, load_config, read_config
from swjoin.config.run import RunConfig, to_plain
from swjoin.core.errors import Spelling, UserError, one_line
from swjoin.core.storage import check_name


@dataclass(frozen=True)
class Job:
    """config: the run. target: OUT file of `join`, DIR/results of `run`, None with a count sink. directory: target is a
    directory.
    run_dir: where metrics and run.json go (`run`), or None. report: another copy of run.json, or None. command: as typed.
    resumes: the run starts from the newest checkpoint. run_id: random, in run.json and in every result file; kept by a run that
    is resumed. spelling: how the ranks' errors name settings. plan: a logical plan, as `plan_to_plain` writes it, of the
    configuration's inputs; None: the join of its two streams. flight_port: of the run's endpoint, which it keeps when its
    queries change; not saved.
    """

    config: RunConfig
    target: Path | None
    directory: bool
    run_dir: Path | None
    report: Path | None
    command: str
    resumes: bool = False
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    spelling: Spelling = "keys"
    plan: dict[str, Any] | None = None
    flight_port: int | None = None

    def __post_init__(self) -> None:
        for path in (self.target, self.run_dir):
            if path is not None:
                check_name(path)

    @property
    def plan_keys(self) -> dict[str, Any]:
        """What run.json and checkpoints say of the job's plan; nothing without one."""
        return {} if self.plan is None else {"plan": self.plan}

    @property
    def queries(self) -> tuple[str, ...]:
        """Names of queries that have names, as several have."""
        nodes = [] if self.plan is None else self.plan.get("nodes")
        results = [node for node in nodes if isinstance(node, dict) and node.get("named")] if isinstance(nodes, list) else []
        return tuple(str(node.get("name")) for node in results)

    @property
    def result_folders(self) -> list[Path]:
        """Directories of result files: of each query that has a name."""
        if self.target is None or not self.directory:
            return []
        return [self.target / name for name in self.queries] or [self.target]

    def with_plan_of(self, saved: Mapping[str, Any]) -> Job:
        """The job with the plan of a run.json or of a checkpoint, if there is one. UserError when its keys are damaged."""
        if not isinstance(saved.get("plan", {}), dict):
            raise UserError("is not what it must be", subject="plan")
        return replace(self, plan=saved.get("plan"))

    @property
    def takes_changes(self) -> bool:
        """Whether queries can be added while it runs, and dropped: it has queries with names, and checkpoints."""
        kept = self.checkpoints is not None and self.run_dir is not None
        return kept and bool(self.queries) and not self.config.measure.prefill_us

    @property
    def checkpoints(self) -> Path | None:
        """Folder of the run's checkpoints; None when it makes none."""
        checkpoint = self.config.checkpoint
        if not checkpoint.enabled or self.run_dir is None:
            return None
        return self.run_dir / "checkpoints" if checkpoint.directory is None else Path(checkpoint.directory)

    @property
    def resume_command(self) -> str:
        """The command that resumes from the newest checkpoint."""
        place = self.run_dir if self.config.checkpoint.directory is None else self.config.checkpoint.directory
        return f"swjoin run --resume {place}"

    def next_step(self, ranks: int | None = None) -> str:
        """What a user does after a run has ended early."""
        if self.checkpoints is None or not any(self.checkpoints.glob("checkpoint-*.json")):
            return "start it again"
        return f"go on with: {self.resume_command}{'' if ranks is None else f' -n {ranks}'}"

    def to_json(self) -> str:
        plain: dict[str, Any] = {"config": to_plain(self.config), "directory": self.directory, "command": self.command}
        plain |= {"resumes": self.resumes, "run_id": self.run_id, "spelling": self.spelling}
        plain["plan"] = self.plan
        for name in ("target", "run_dir", "report"):
            value = getattr(self, name)
            plain[name] = None if value is None else str(value)
        return json.dumps(plain)

    @staticmethod
    def from_json(text: str) -> Job:
        plain = json.loads(text)
        paths = {n: None if plain[n] is None else Path(plain[n]) for n in ("target", "run_dir", "report")}
        return Job(
            config_from_plain(plain["config"]),
            paths["target"],
            plain["directory"],
            paths["run_dir"],
            paths["report"],
            plain["command"],
            plain["resumes"],
            plain["run_id"],
            plain["spelling"],
            plain["plan"],
        )


def load_job(path: Path, overrides: Sequence[str], command: str) -> Job:
    """The job, without outputs, of a configuration, or of an earlier run: its directory, or its run.json; with --set overrides.

    UserError names the file and the key of what is wrong.
    """
    path = path / "run.json" if os.path.isdir(path) else path  # unlike Path.is_dir, it accepts names that are too long
    if path.suffix != ".json":
        return Job(load_config(path, list(overrides)), None, False, None, None, command)
    try:
        saved = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); is it the directory of a run that has ended?") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON ({one_line(error)})") from None
    if not isinstance(saved, dict) or not isinstance(saved.get("config"), dict):
        raise UserError(f"{path}: is neither a configuration nor the run.json of a run")
    config = saved["config"]
    if isinstance(queries := config.get("queries"), list) and len(queries) == 1:  # so that --set join.KEY finds it
        config = {**{key: value for key, value in config.items() if key != "queries"}, "join": queries[0]}
    job = Job(read_config(config, overrides, str(path)), None, False, None, None, command)
    try:
        return job.with_plan_of(saved)
    except UserError as error:
        raise error.prefixed(str(path)) from None


def leaves_rows_out(config: RunConfig) -> bool:
    """Rows that are left out are written to a file: late ones under policy `side`, shed ones always."""
    return config.time.late == "side" or config.on_overload.policy == "shed"


def late_target(job: Job) -> Path | None:
    """Where rows that are left out go: DIR/late.parquet, or OUT.late.parquet beside a join's output."""
    if not leaves_rows_out(job.config):
        return None
    if job.run_dir is not None:
        return job.run_dir / "late.parquet"
    if job.target is not None:
        return job.target.with_name(job.target.name + ".late.parquet")
    return job.report.with_name(job.report.name + ".late.parquet") if job.report is not None else None
