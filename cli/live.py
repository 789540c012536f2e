"""``refeed doctor --live``: questions that only a real project answers, asked in one go and cleaned up after."""

import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import typer

from cli.invocation import open_deployment
from cli.terminal import ExitCode, confirm, err, out, print_json
from jobs.launcher import Launch
from model.errors import RefeedError, SettingsError
from model.settings import Settings

if TYPE_CHECKING:
    from warehouse.port import Probes

_PATIENCE_SECONDS: Final = 300.0
_BATCH_SECONDS: Final = 900.0
_PULL_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What one question was answered with; ``state`` is answered, failed or skipped."""

    question: str
    state: str
    answer: str
    seconds: float


def examine_live(
    settings: Settings, *, is_confirmed: bool, as_json: bool, patience_seconds: float = _PATIENCE_SECONDS
) -> None:
    """Ask the questions in a scratch dataset and on a scratch topic, and print a table to paste into an issue.

    What is made is taken away again, also after Ctrl-C or SIGTERM. A question that fails keeps none of the others
    from being asked.

    Raises:
        SettingsError: the warehouse is not BigQuery.
    """
    name = f"refeed_doctor_{secrets.token_hex(4)}"
    probes = open_deployment(settings).warehouse.open_probes(name, patience_seconds=patience_seconds)
    if probes is None:
        raise SettingsError(f"--live works only with BigQuery, but REFEED_WAREHOUSE is {settings.warehouse}.")
    err.print(
        f"In the project {settings.project}, location {settings.bigquery.location}, this command creates the "
        f"dataset {name}, and the topic {name} with a subscription. It "
        "deletes both at the end. It writes 12 MB to BigQuery and publishes 5 MB. While the command waits, it "
        "runs a query each second, and BigQuery bills at least 10 MB for each query. All these calls cost less "
        f"than 0.10 USD at list prices. {_batch_text(settings)} "
        f"Each measurement takes at most {patience_seconds / 60:.0f} minutes."
    )
    if not is_confirmed:
        confirm("Continue?")
    # kill says it as Ctrl-C does: the blocks below clean up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    answers: list[ProbeAnswer] = []
    try:
        _ask_all(settings, probes, name, patience_seconds, answers)
    finally:
        # Also what was answered before an interruption.
        if as_json:
            print_json({"project": settings.project, "answers": [asdict(answer) for answer in answers]})
        else:
            out.print(render(answers))
    is_whole = all(answer.state != "failed" for answer in answers)
    raise typer.Exit(ExitCode.OK if is_whole else ExitCode.FAILED)


def render(answers: list[ProbeAnswer]) -> str:
    """Return the answers as a table of Markdown.

    Example:
        >>> print(render([ProbeAnswer("sizes of Pulls", "answered", "5 Pulls", 1.25)]))
        | question | state | answer | seconds |
        |---|---|---|---|
        | sizes of Pulls | answered | 5 Pulls | 1.2 |
    """
    rows = [f"| {a.question} | {a.state} | {a.answer.replace('|', '/')} | {a.seconds:.1f} |" for a in answers]
    return "\n".join(["| question | state | answer | seconds |", "|---|---|---|---|", *rows])


def _ask_all(
    settings: Settings, warehouse: "Probes", name: str, patience_seconds: float, answers: list[ProbeAnswer]
) -> None:
    from connectors.pubsub.probes import PubSubProbes

    def ask(question: str, find: Callable[[], str]) -> None:
        answers.append(_ask(question, find))

    with warehouse.open():
        for question, find in warehouse.questions():
            ask(question, find)
    with open_deployment(settings).pubsub as pubsub:
        probes = PubSubProbes(pubsub, name, patience_seconds=min(_PULL_SECONDS, patience_seconds))
        with probes.open():
            ask("sizes of unary Pulls with a backlog", probes.pull_sizes)
    if settings.launcher == "dataproc":
        ask("one batch on Dataproc", partial(_run_batch, settings, name))
    else:
        answers.append(ProbeAnswer("one batch on Dataproc", "skipped", "REFEED_LAUNCHER is not dataproc", 0.0))


def _ask(question: str, find: Callable[[], str]) -> ProbeAnswer:
    err.print(f"{question} ...")
    began = time.monotonic()
    try:
        state, answer = "answered", find()
    except RefeedError as exc:
        state, answer = "failed", f"{exc.code}: {exc.message}"
    return ProbeAnswer(question, state, " ".join(answer.split()), round(time.monotonic() - began, 1))


def _run_batch(settings: Settings, name: str) -> str:
    """Run ``connectors.spark.trial`` as a batch, to its end; one that is cut short is cancelled."""
    launcher = open_deployment(settings).launcher
    batch = launcher.launch(Launch(name, "connectors.spark.trial", name, settings.home / "logs" / f"{name}.log"))
    began = time.monotonic()
    try:
        while (reason := launcher.exit_reason(batch)) is None:
            if time.monotonic() - began > _BATCH_SECONDS:
                return f"not ended after {_BATCH_SECONDS:.0f} s"
            time.sleep(_LOOK_SECONDS)
        return f"{reason} It took {time.monotonic() - began:.0f} s."
    finally:
        # One that has ended is no error.
        launcher.kill(batch)
        launcher.close()


def _batch_text(settings: Settings) -> str:
    if settings.launcher != "dataproc":
        return "The command runs no Dataproc batch, because REFEED_LAUNCHER is not dataproc."
    return "The command also runs a Dataproc batch with your settings for some minutes, which costs extra."
