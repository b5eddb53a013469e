"""The command line: what is typed, what is printed, and exit codes.

`main.py` names the module of each command. `serve.py` (with `run.py`), `controller.py` (with
`controller_service.py`), `inspect.py` (check, explain, schema) and `trial.py` (demo, simulate,
replay) have the options of the commands. `explain.py`, `check_live.py` and `demo.py` do the work of
one each. `terminal.py` is shared by all.

Only the module of the requested command is loaded: a server would keep the others in memory. What a
server does is not here but in `router/app.py` and `router/processes/`.
"""
