"""The command line: what is typed, what is printed, and exit codes.

`main.py` names the module of each command: `serve.py`, `check.py` (with `check_live.py`, and
`schema`), `explain.py`, `demo.py`, `simulate.py`, `replay.py` and `controller_service.py`.
`terminal.py` has what they share.

Only the module of the requested command is loaded: a server would keep the others in memory. What a
server does is not here but in `router/app.py` and `router/processes/`.
"""
