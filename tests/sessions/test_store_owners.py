"""Who began or moved a session can undo that, unless others have used it since."""

import asyncio

from router.sessions.table import Binding, SessionLease
from tests.sessions.playing import Make, Play


def test_what_others_use_is_not_one_s_own(play: Play) -> None:
    """A session can be moved or closed by the one that began it, unless it was used since."""

    async def test(make: Make) -> None:
        store = make(SessionLease())
        for key, others in (("a", False), ("b", True)):
            first, _ = await store.bind(key, Binding("w"), None)
            assert first is not None
            begun = first.used
            if others:  # looked for it, or tried to bind it
                await store.bind(key, Binding("u"), None)
            moved, done = await store.bind(key, Binding("v", used=begun), "w")
            assert moved is not None
            assert (moved.worker, done) == (("w", False) if others else ("v", True))
            ended = await store.close(key, begun=moved.created)
            assert (ended is None) == others
            assert (await store.use(key) is not None) == others

    play(test)


def test_another_session_of_the_same_id_is_not_one_s_own(play: Play) -> None:
    """After a close, another session with the same id is not closed by the first one's owner."""

    async def test(make: Make) -> None:
        store = make(SessionLease())
        first, _ = await store.bind("a", Binding("w"), None)
        assert first is not None
        assert await store.close("a") is not None
        await asyncio.sleep(0.01)  # so that the time differs
        await store.bind("a", Binding("w"), None)
        assert await store.close("a", begun=first.created) is None
        second = await store.use("a")
        assert second is not None
        assert second.created > first.created

    play(test)


def test_a_move_is_taken_back_unless_others_have_used_it(play: Play) -> None:
    """A router that moved a session can move it back, unless it was used in between."""

    async def test(make: Make) -> None:
        store = make(SessionLease())
        for key, others in (("a", False), ("b", True)):
            await store.bind(key, Binding("w"), None)
            mine = await store.use(key)
            assert mine is not None
            moved, _ = await store.bind(key, Binding("v"), "w")
            assert moved is not None
            last = moved.used
            assert last == mine.used
            if others:
                await asyncio.sleep(0.01)
                await store.use(key)
            back, done = await store.bind(key, Binding("w", used=last), "v")
            assert back is not None
            assert (back.worker, done) == (("v", False) if others else ("w", True))

    play(test)
