"""What engines leave unsaid of their slower tiers, found out by what they tell or compute later.

Stores never tell what leaves them. vLLM empties the host's memory with the GPU if it is asked to
(`/reset_prefix_cache` with `reset_external`), and tells of the GPU alone. LMCache does not tell
under which salt a chunk lies. GPUs tell all. Seen on vLLM 0.32 with LMCache 0.5.6.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from controller.events import Removed, Tier

if TYPE_CHECKING:
    from controller.index import Index
    from controller.place import Place


def missed(index: "Index", worker: str, keys: Sequence[int], at: int) -> None:
    """`worker` was asked for all that these keys name, and had to compute block `at`: where that
    was said to lie it lies no more, until it is told of again."""
    steps = index.tree.find(keys[: at + 1]).steps
    if not steps or steps[-1][2] <= at:
        return
    begin, run, _ = steps[-1]
    host = index.place(worker, Tier.L1)
    if host is not None and host.since is not None and run.holds(host.bit, at - begin):
        emptied(index, host)
    for where in ((worker, Tier.L1), (worker, Tier.L2), ("", Tier.L2)):
        place = index.place(*where)
        if place is not None and run.holds(place.bit, at - begin):
            index.counts["not where it was"] += 1
            index.discard(place, run, at - begin)


def emptied(index: "Index", place: "Place") -> None:
    """What a host's memory had before its engine was cleared is gone."""
    since, place.since = place.since or set(), None
    gone = [name for name, _ in place.names if name not in since]
    index.counts["gone without a word"] += len(gone)
    index.copies -= len(place.copies)
    place.copies.clear()
    index.remove(place.worker, Removed(gone, place.tier, False, None))
