# An image with everything of RayMQ in the locked versions: `docker build -t raymq .`; docs/install.md shows how to run it.
FROM python:3.11-slim-bookworm AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /opt/raymq
COPY pyproject.toml uv.lock README.md LICENSE ./
# the packages are a layer of their own, which a change of RayMQ keeps
RUN uv sync --locked --no-dev --no-install-project
COPY actors ./actors
COPY cluster ./cluster
COPY configs ./configs
COPY jobs ./jobs
COPY store ./store
RUN uv sync --locked --no-dev --no-editable

FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 1000 raymq && install --directory --owner=raymq /var/lib/raymq
COPY --from=build /opt/raymq/.venv /opt/raymq/.venv
# stores, logs and compiled kernels are in the home of the cluster, which should be a volume
ENV PATH=/opt/raymq/.venv/bin:$PATH RAYMQ_HOME=/var/lib/raymq XDG_CACHE_HOME=/var/lib/raymq/cache
USER raymq
WORKDIR /var/lib/raymq
EXPOSE 9876 10911 10921
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:10876/healthz', timeout=4)"]
CMD ["sh", "-c", "raymq up && exec raymq logs --follow"]
