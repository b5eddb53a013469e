"""The console script. An interrupt is no error, not even while modules are being loaded."""


def main() -> None:
    """Load the command line and run it."""
    try:
        from router.cli import app  # noqa: PLC0415 - loading takes most of a second

        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
