"""What benchmarks share: the processes around a router, and measurements from outside.

`bench` runs stub workers, proxies and a load generator, which all end with it. `stub` is the
worker, `load` the generator for a fixed number of connections; `streams` holds streams open and
measures their delays; `bodies` makes the requests. `proxies` knows how each gateway is started,
`router` runs Warmroute alone, with settings that may change meanwhile. `connection` is a client's
connection that may misbehave. `processes` starts and stops programs, and reads their CPU time and
memory. No command is here, and nothing that only one command needs.
"""
