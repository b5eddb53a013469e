"""Every number that the documentation states about speed or routing, by one command each.

A command is `python -m benchmarks.NAME`, where NAME is a module or a package of this folder;
README.md lists them, with what each states and how long it takes. The ratios that a command prints
come from a single run. What commands share is in `harness`. `routing` runs workloads through
routers on a virtual clock; `scenarios` and `seeds` use its clock. Nothing here is part of what is
installed, and nothing that is installed imports it.
"""
