# The daemon in a container: one venv, no compiler, no root. It was checked by tests/deploy, and not built there: no engine.
#   docker build -t autoscaler .
#   docker run -v ./autoscaler.yaml:/etc/autoscaler/autoscaler.yaml:ro -v autoscaler:/var/lib/autoscaler autoscaler
FROM python:3.12-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
WORKDIR /src
RUN ["python", "-m", "venv", "/opt/autoscaler"]

# What is pinned by its hash first: it changes less often than the code.
COPY requirements.lock ./
RUN ["/opt/autoscaler/bin/pip", "install", "--require-hashes", "--only-binary", ":all:", "-r", "requirements.lock"]

COPY pyproject.toml README.md LICENSE ./
COPY autoscaler ./autoscaler
COPY policies ./policies
COPY providers ./providers
RUN ["/opt/autoscaler/bin/pip", "install", "--no-deps", "--no-build-isolation", "."]


FROM python:3.12-slim-bookworm

# Named by number, so that an orchestrator can see that it is not root.
RUN groupadd --system --gid 10001 autoscaler \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/autoscaler --shell /usr/sbin/nologin autoscaler \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/autoscaler \
    && install --directory --mode=0755 /etc/autoscaler

COPY --from=build /opt/autoscaler /opt/autoscaler

# The environment wins over the file, so that the state is on the volume and the health check knows the port. To reach
# the admin API from outside, set AUTOSCALER_ADMIN__LISTEN=0.0.0.0:9095 and mount a token (AUTOSCALER_ADMIN__TOKEN_FILE).
ENV PATH=/opt/autoscaler/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    AUTOSCALER_STATE_DIR=/var/lib/autoscaler \
    AUTOSCALER_ADMIN__LISTEN=127.0.0.1:9095

USER 10001:10001
WORKDIR /etc/autoscaler
VOLUME ["/var/lib/autoscaler"]
EXPOSE 9095
STOPSIGNAL SIGTERM

HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; port = int(os.environ['AUTOSCALER_ADMIN__LISTEN'].rpartition(':')[2]); asked = http.client.HTTPConnection('127.0.0.1', port, timeout=3); asked.request('GET', '/healthz'); sys.exit(asked.getresponse().status != 200)"]

ENTRYPOINT ["autoscaler"]
CMD ["run", "--config", "/etc/autoscaler/autoscaler.yaml"]
