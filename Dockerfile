# Not slim: the request path is compiled here, with what it is checked with elsewhere.
FROM python:3.13 AS build
ENV PIP_CONSTRAINT=/src/constraints.txt
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE constraints.txt ./
COPY router router
COPY strategies strategies
COPY controller controller
COPY simulator simulator
RUN python -m venv /warmroute \
    && /warmroute/bin/pip install --no-cache-dir '.[redis,lmcache]' \
    && /warmroute/bin/warmroute --version | grep compiled

FROM python:3.13-slim
COPY --from=build /warmroute /warmroute
COPY config /etc/warmroute
# Nothing in the working directory can stand in for a module of ours.
ENV PATH=/warmroute/bin:$PATH PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --system --no-create-home warmroute
USER warmroute
# Published ports can be reached by others: the file must say who may use it (`auth`).
EXPOSE 8080
ENTRYPOINT ["warmroute"]
CMD ["serve", "--config", "/etc/warmroute/warmroute.yaml", "--listen", "0.0.0.0:8080"]
