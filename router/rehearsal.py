"""Builds everything that serving needs and drops it again: valid settings may still not serve."""

from router.app import create_app
from router.rebuild import CannotBuild
from router.settings import Settings


async def rehearse(settings: Settings) -> str:
    """Return a sentence saying why it could not serve, or "". No worker is contacted."""
    try:
        door = create_app(settings)
    except CannotBuild as error:
        return str(error)
    await door.stop()
    return ""
