"""`warmroute check --live`: asks every worker once, after building all that serving needs.

Valid settings may still not serve, so everything is built first and dropped again. Then each worker
computes the same small prompt twice. This reveals mistakes in its flags: cached tokens that are not
reported, KV events of the GPU or of L1 that do not arrive, and chunks that do not appear on L2
under the names that follow from the settings. The prompt is a new one and the same for all, so the
events that they send for it show whether engines name equal blocks alike. If a separate controller
listens to the events, only that one knows about them.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from random import Random, SystemRandom
from time import monotonic
from typing import NamedTuple

import msgspec

from controller.index.agreement import HashAgreement, compare_hashes, hash_algorithm
from controller.index.block_events import Tier
from controller.kv_memory import KvMemory
from router.app import Application, create_app
from router.fleet.build import CannotBuild
from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries, NoAnswer
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.kv.attach import FLAG, Memories
from router.kv.lmcache.shared_store import Lookup, LookupFailed, SharedStore
from router.kv.remote import RemoteMemory
from router.kv.status import USAGE_FLAG, held_by_tier, kv_statuses
from router.settings.fleet import TiersSettings
from router.settings.model import Settings
from router.settings.types import format_duration
from router.tokenizers.sources import is_adapter
from router.tokenizers.state import SourceCase
from router.tokenizers.status import BLIND
from router.tokenizers.verify import Agreement
from router.upstream.usage import Usage, UsageTail
from strategies.api import Prompt

PATH = "/v1/completions"
#: Tokens of the prompt: a little more than two blocks of the largest usual size.
LENGTH = 520
#: Seconds to wait for an answer, and for the KV events that follow it.
PROMPT_TIMEOUT_S, EVENTS_TIMEOUT_S = 60.0, 5.0
_TICK_S = 0.05


class CacheReport(NamedTuple):
    """What one worker answered to a repeated prompt."""

    reports: bool | None
    """Whether the answers report cached tokens; None if there were no answers."""
    sentence: str
    """A sentence for people."""


def prompt_of() -> list[int]:
    """Make a random prompt, which no worker has cached, of token ids in every vocabulary."""
    random = SystemRandom()
    return [random.randrange(33, 96) for _ in range(LENGTH)]


def model_of(worker: Worker) -> str:
    """Return the model to ask a worker for: a base model, if it has one, rather than an adapter.

    An adapter's blocks are its own, and stores keep them under other names.
    """
    bases = [name for name in worker.models if not is_adapter(name, worker.models)]
    return min(bases or worker.models)


async def ask_all(
    pool: Pool, memory: KvMemory | None, inquiries: Inquiries
) -> dict[str, CacheReport]:
    """Ask all ready workers of a pool at once; with a `memory`, wait for their KV events too.

    Returns the result by the worker's name.
    """
    prompt = prompt_of()
    ready = [worker for worker in pool.workers if worker.ready and worker.models]
    heard = {worker.name: memory.heard(worker.name) if memory else 0 for worker in ready}
    answers = await asyncio.gather(*(_ask(worker, prompt, inquiries) for worker in ready))
    reports = dict(zip((worker.name for worker in ready), answers, strict=True))
    if memory is not None:
        for name, report in reports.items():
            if report.reports is not None and name in memory.track_records:
                memory.track_records[name].answered(report.reports)
        speaking = [name for name, report in reports.items() if report.reports is not None]
        speaking = [name for name in speaking if not memory.doubt(name)]
        for _ in range(int(EVENTS_TIMEOUT_S / _TICK_S)):
            if all(memory.heard(name) > heard[name] for name in speaking):
                break
            await asyncio.sleep(_TICK_S)
    return reports


async def computed(
    worker: Worker,
    prompt: Sequence[int],
    inquiries: Inquiries,
    *,
    patience: float = PROMPT_TIMEOUT_S,
) -> Usage:
    """Have a prompt of these tokens computed; return the usage that the worker reports.

    Raises NoAnswer.
    """
    body = msgspec.json.encode(
        {"model": model_of(worker), "prompt": prompt, "max_tokens": 1, "temperature": 0}
    )
    answer = await inquiries.ask(worker, PATH, patience=patience, body=body)
    if not answer.good:
        raise NoAnswer(f"{PATH} answered {answer.status} to a prompt of token ids")
    tail = UsageTail()
    tail.add(answer.body)
    usage = tail.read()
    if usage.prompt is None:
        raise NoAnswer(f"{PATH} told no usage")
    return usage


async def _ask(worker: Worker, prompt: Sequence[int], inquiries: Inquiries) -> CacheReport:
    """Ask one worker twice."""
    try:
        _, again = [await computed(worker, prompt, inquiries) for _ in range(2)]
    except NoAnswer as lacking:
        return CacheReport(None, f"a repeated prompt: not known: {lacking}")
    if again.cached is None:
        unsaid = f"how much of it was cached is not reported (start vLLM with {USAGE_FLAG})"
        return CacheReport(False, f"a repeated prompt: {unsaid}")
    hint = "" if again.cached else " (see that vLLM has --enable-prefix-caching)"
    return CacheReport(
        True, f"a repeated prompt: {again.cached} of {LENGTH} tokens were cached{hint}"
    )


#: Seconds to wait for an answer, for KV events, and for chunks on L2.
TIER_TIMEOUT_S, TIER_EVENTS_TIMEOUT_S, STORED_S = 30.0, 2.0, 5.0
#: Tokens of the prompt beyond one chunk; and the longest chunk, in tokens, that is looked for.
TOKENS, MAX_CHUNK_TOKENS = 192, 4096
#: Seconds between two checks while waiting.
POLL_INTERVAL_S = 0.05
#: Token ids that every vocabulary has and that are special tokens in none.
_IDS = range(100, 250)


async def tier_mistakes(door: Application, tiers: TiersSettings) -> list[str]:
    """Ask every ready worker of every pool that follows KV events; return what is wrong."""
    memories = door.memories
    followed: list[tuple[Pool, KvMemory | None]] = [
        *memories.pools(),
        *((pool, None) for pool, _ in memories.remotes()),
    ]
    return [
        f"pool {pool.name}: worker {worker.name}: {line}"
        for pool, memory in followed
        for worker in pool.workers
        if worker.ready and worker.models
        for line in await _mistakes(memory, worker, memories.stores.get(pool.name), tiers)
    ]


async def _mistakes(
    memory: KvMemory | None, worker: Worker, store: SharedStore | None, tiers: TiersSettings
) -> list[str]:
    """Return what is wrong with one worker, in sentences."""
    chunk = store.lookup.chunk if store is not None else 0
    length = TOKENS + (chunk if chunk <= MAX_CHUNK_TOKENS else 0)
    ids, asking = Random().choices(_IDS, k=length), Inquiries()
    before = memory.heard(worker.name) if memory is not None else 0
    try:
        first, again = [
            await computed(worker, ids, asking, patience=TIER_TIMEOUT_S) for _ in range(2)
        ]
    except NoAnswer as error:
        return [f"tiers were not looked at: {error}"]
    lines = [*_usage_mistakes(first, again)]
    if memory is not None and memory.sources.get(worker.name):
        lines += await _event_mistakes(memory, worker, before, l1=tiers.l1_told)
    if store is not None and 0 < chunk <= MAX_CHUNK_TOKENS:
        model = model_of(worker)
        lines += await _store_mistakes(store.lookup, model, array("I", ids).tobytes())
    return lines


def _usage_mistakes(first: Usage, again: Usage) -> list[str]:
    if first.cached is None and again.cached is None:
        return [
            "its answers do not tell cached tokens: start vLLM with --enable-prompt-tokens-details"
        ]
    if not again.cached:
        return [
            "it computes again what it has just computed: start vLLM with --enable-prefix-caching"
        ]
    return []


async def _event_mistakes(memory: KvMemory, worker: Worker, before: int, *, l1: bool) -> list[str]:
    """Check that it has sent events since, and, with `l1`, that some were ever about L1."""
    if not await _comes(lambda: memory.heard(worker.name) > before):
        return [f"it computed a prompt and announced nothing of it: start vLLM with {FLAG}"]
    if l1 and not await _comes(lambda: bool(held_by_tier(memory, worker).get("l1"))):
        return [
            "it announces no block on L1, which tiers say that it has: set LMCACHE_ENABLE_KV_EVENTS"
            " to True beside LMCache; where there is no L1, give tiers.l1.enabled: false"
        ]
    return []


async def _comes(true: Callable[[], bool]) -> bool:
    """Wait up to `TIER_EVENTS_TIMEOUT_S` for a condition; return whether it came true."""
    for _ in range(int(TIER_EVENTS_TIMEOUT_S / POLL_INTERVAL_S)):
        if true():
            return True
        await asyncio.sleep(POLL_INTERVAL_S)
    return False


async def _store_mistakes(lookup: Lookup, model: str, ids: bytes) -> list[str]:
    """Look for the prompt on L2 for up to `STORED_S` seconds."""
    try:
        for _ in range(int(STORED_S / POLL_INTERVAL_S)):
            if await lookup.held(ids, model, ""):
                return []
            await asyncio.sleep(POLL_INTERVAL_S)
    except LookupFailed as error:
        return [f"L2: {error}"]
    return [f"what it computed is not on L2 {lookup.compare(model)}"]


#: How to make engines name blocks alike.
HINT = (
    "engines that share a store must have the same PYTHONHASHSEED and --prefix-caching-hash-algo,"
    " and the same adapters by the same paths"
)


def block_names(memory: KvMemory) -> tuple[list[str], bool]:
    """Return a line per engine whose KV events are followed, and whether all is well.

    It is not if they name blocks differently although they share an L2 store.
    """
    engines = {source.name: source.worker for source in memory.all_sources()}
    agreements = compare_hashes(memory.index, list(engines))
    algorithms = {
        source.name: hash_algorithm(source.first)
        for source in memory.all_sources()
        if source.first is not None
    }
    lines = [
        f"worker {worker}: block names: "
        + "; ".join(_parts(engine, engines, agreements[engine], algorithms))
        for engine, worker in engines.items()
    ]
    alike = not any(agreement.others for agreement in agreements.values())
    alike = alike and not _differ(algorithms)
    return lines, alike or memory.index.cache("", Tier.L2) is None


def _differ(algorithms: dict[str, str]) -> bool:
    return len(set(algorithms.values()) - {""}) > 1


def _parts(
    engine: str, engines: dict[str, str], agreement: HashAgreement, algorithms: dict[str, str]
) -> Iterator[str]:
    """Say how an engine makes its block names, and whether other engines make the same."""
    if engine not in algorithms and not agreement.common:
        yield "not comparable, none was heard yet"
        return
    mine = algorithms.get(engine, "")
    yield f"by {mine}" if mine else "made in a way that is not known"
    rest = [other for other in engines if other != engine]
    if agreement.others:
        names = ", ".join(sorted({engines[other] for other in agreement.others}))
        yield f"not those of {names}, of {agreement.common} blocks in common ({HINT})"
    elif agreement.common:
        yield f"those of the others, of {agreement.common} blocks in common"
    elif not rest:
        yield "there is no other engine to compare with"
    elif mine and {algorithms.get(other) for other in rest} == {mine}:
        yield "so are those of the others; no block seen in common"
    elif mine and _differ(algorithms):
        yield f"others name them in another way; no block seen in common ({HINT})"
    else:
        yield "not comparable with others, no block seen in common"


#: Seconds that a controller may take here: what takes longer is not there.
TIMEOUT_S = 5.0
#: How often a controller is asked, over a connection that is there, until it keeps its deadline.
MAX_ATTEMPTS = 5


async def check_live(settings: Settings, *, ask: bool = True) -> tuple[list[str], bool]:
    """Ask all workers, controllers and stores; return lines for people, and whether all is well.

    With `ask`, workers compute short prompts, too. Raises CannotBuild.
    """
    door = create_app(_patient(settings))
    try:
        await door.look()
        cases = door.keeper.cases
        named = {pool.name for pool in door.fleet.pools if pool.kv is not None}
        blind = [case for case in cases if case.pool in named and not case.trusted]
        lines = [*_workers(door.fleet)]
        lines += [line for case in cases for line in _tokenizer(case, case in blind)]
        # Stores are checked before our own prompts can put blocks into them.
        stores = [await _store(name, store) for name, store in door.memories.stores.items()]
        prompt_lines = [line async for line in _asked(door.fleet, door.memories)] if ask else []
        lines += [
            f"pool {status.pool}: {status.sentence()}" for status in kv_statuses(door.memories)
        ]
        blocks = [(pool, *block_names(memory)) for pool, memory in door.memories.pools()]
        lines += [f"pool {pool.name}: {line}" for pool, names, _ in blocks for line in names]
        lines += prompt_lines
        for pool, remote in door.memories.remotes():
            lines += await _controller(pool, remote, _deadline(settings))
        well = all(worker.ready for worker in door.fleet.workers)
        well = well and all(alike for _, _, alike in blocks)
        well = well and not any(status.doubt for status in kv_statuses(door.memories))
        well = well and not any(remote.failing for _, remote in door.memories.remotes())
        lines += [line for line, _ in stores]
        mistakes = await tier_mistakes(door, settings.tiers) if ask else []
        lines += mistakes
        well = well and not mistakes
        well = well and all(good for _, good in stores)
        return lines, well and not blind and not any(map(_is_wrong, cases))
    finally:
        await door.stop()


async def _asked(fleet: Fleet, memories: Memories) -> AsyncIterator[str]:
    for pool in fleet.pools:
        for name, report in (await ask_all(pool, memories.of(pool), Inquiries())).items():
            yield f"pool {pool.name}: worker {name}: {report.sentence}"


async def _store(pool: str, store: SharedStore) -> tuple[str, bool]:
    """Check a store that is asked what it holds (L2); return a line, and whether it is fine."""
    try:
        await store.look()
    except LookupFailed as error:
        return f"pool {pool}: L2: {error}", False
    return f"pool {pool}: L2: {store.wrong or 'it answers'}", not store.wrong


def _workers(fleet: Fleet) -> Iterator[str]:
    for pool in fleet.pools:
        for worker in pool.workers:
            details = ", ".join(sorted(worker.models)) if worker.ready else worker.reason
            yield f"pool {pool.name}: worker {worker.name}: {worker.state.value}: {details}"


def _patient(settings: Settings) -> Settings:
    """Return settings with which a controller that is slow is not taken for one that is gone."""
    controller = settings.controller
    if controller is None:
        return settings
    patient = controller.model_copy(update={"deadline": max(controller.deadline, TIMEOUT_S)})
    return settings.model_copy(update={"controller": patient})


def _deadline(settings: Settings) -> float:
    return settings.controller.deadline if settings.controller else TIMEOUT_S


async def _controller(pool: Pool, remote: RemoteMemory, deadline: float) -> list[str]:
    """Return what the controller says about the pool's workers, or why it does not answer."""
    prompt, names = Prompt("", 0), [worker.name for worker in pool.workers]
    await remote.ask(prompt, names)
    doubts = {name: remote.doubt(name, prompt) for name in names}
    answer = remote.sentence() if remote.failing else await _answers(remote, names, deadline)
    lines = [f"pool {pool.name}: controller {remote.url}: {answer}"]
    if remote.failing:
        return lines
    return lines + [
        f"pool {pool.name}: worker {name}: KV events: {doubt or 'trusted'}, says the controller"
        for name, doubt in doubts.items()
    ]


async def _answers(remote: RemoteMemory, names: list[str], deadline: float) -> str:
    """Ask a controller that has answered once more, or a few times; say how it answers."""
    least = TIMEOUT_S
    for _ in range(MAX_ATTEMPTS):
        begun = monotonic()
        await remote.ask(Prompt("", 0), names)
        if remote.failing:
            return remote.sentence()
        least = min(least, monotonic() - begun)
        if least <= deadline:
            return "answers"
    limit = format_duration(deadline)
    return f"answers, but in {1000 * least:.0f} ms at best; controller.deadline is {limit}"


def _tokenizer(case: SourceCase, blind: bool) -> Iterator[str]:
    more = f"; {BLIND}" if blind else ""
    yield f"pool {case.pool}: {', '.join(sorted(case.models))}: {case.sentence()}{more}"
    for name, comparison in sorted(case.asked.items()):
        yield f"  worker {name}: {comparison.verdict.state}: {comparison.verdict.why}"


def _is_wrong(case: SourceCase) -> bool:
    """Whether a worker makes other tokens, or a tokenizer from the settings cannot be trusted."""
    if any(it.verdict.state is Agreement.DIFFERS for it in case.asked.values()):
        return True
    return case.origin.told and not case.trusted


async def rehearse(settings: Settings) -> str:
    """Return a sentence saying why it could not serve, or "". No worker is contacted."""
    try:
        door = create_app(settings)
    except CannotBuild as error:
        return str(error)
    await door.stop()
    return ""
