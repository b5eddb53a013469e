"""Everything that serving needs, made once and let go: a file that is right may still not serve."""

from router.app import create_app
from router.rebuild import CannotBuild
from router.settings import Settings


async def rehearse(settings: Settings) -> str:
    """Say in a sentence why it could not serve; an empty one if it could. Nobody is asked."""
    try:
        door = create_app(settings)
    except CannotBuild as error:
        return str(error)
    await door.stop()
    return ""
