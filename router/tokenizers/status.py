"""What operators are shown about tokenizers."""

from typing import Literal, Self

from router.observe.models import Shown
from router.tokenizers.state import SourceCase, WorkerRecord
from router.tokenizers.verify import Difference


class DifferenceStatus(Shown):
    """The first token that a worker makes differently."""

    probe: str
    """Which of our texts."""
    index: int
    before: str
    """The text before that token."""
    ours: int | None
    theirs: int | None
    ours_text: str
    theirs_text: str

    @classmethod
    def of(cls, found: Difference) -> Self:
        """Return the form in which a difference is shown."""
        return cls(**{name: getattr(found, name) for name in cls.model_fields})


class TokenizerWorkerStatus(Shown):
    """What a worker says of our tokens."""

    name: str
    state: str
    """`agrees`, `unverified` or `differs`."""
    why: str
    difference: DifferenceStatus | None

    @classmethod
    def of(cls, name: str, asked: WorkerRecord) -> Self:
        """Return the form in which a worker's result is shown."""
        state, why, found = asked.verdict.state, asked.verdict.why, asked.verdict.difference
        difference = DifferenceStatus.of(found) if found else None
        return cls(name=name, state=state, why=why, difference=difference)


class TokenizerStatus(Shown):
    """Models of a pool that have their tokenizer from one source."""

    pool: str
    models: list[str]
    source: str
    """`folder`, `hub`, `worker` or `text`."""
    name: str
    """The folder or the hub id; of workers, what they have loaded."""
    why: str
    """Why this source."""
    library: str | None
    """What tokenizes, and why it is that."""
    keyed: Literal["tokens", "text"]
    """What prompts are keyed by now."""
    reason: str
    """Why not by tokens."""
    workers: list[TokenizerWorkerStatus]

    @classmethod
    def of(cls, case: SourceCase) -> Self:
        """Return the form in which a source is shown."""
        volume = case.volume
        return cls(
            pool=case.pool,
            models=sorted(case.models),
            source=case.origin.kind,
            name=case.origin.name,
            why=case.origin.why,
            library=f"{volume.library}: {volume.why}" if volume else None,
            keyed="tokens" if case.trusted else "text",
            reason=case.reason,
            workers=[TokenizerWorkerStatus.of(*one) for one in sorted(case.asked.items())],
        )
