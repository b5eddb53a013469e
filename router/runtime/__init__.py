"""What every process needs: log lines, signals and limits of the process, threads.

Nothing here knows requests, workers or settings.
"""
