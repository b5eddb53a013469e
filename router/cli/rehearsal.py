"""Builds everything that serving needs and drops it again: valid settings may still not serve."""

from router.app import create_app
from router.fleet.build import CannotBuild
from router.settings.model import Settings


async def rehearse(settings: Settings) -> str:
    """Return a sentence saying why it could not serve, or "". No worker is contacted."""
    try:
        door = create_app(settings)
    except CannotBuild as error:
        return str(error)
    await door.stop()
    return ""
