# An embedded cluster: docker build --tag dcp-serve . && docker run --rm --publish 11210-11212:11210-11212 dcp-serve
# docs/testing.md describes its ports and options.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY LICENSE README.md pyproject.toml setup.py /source/
COPY src /source/src
RUN pip wheel --no-cache-dir --wheel-dir /wheels "/source[cli,testing]"

FROM python:3.13-slim
RUN --mount=from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "dcp-arrow[cli,testing]" && useradd dcp
USER dcp
# One node: data, management, page. Each further node takes two more ports: see --nodes.
EXPOSE 11210-11212
STOPSIGNAL SIGTERM
ENTRYPOINT ["dcp", "serve", "--host", "0.0.0.0", "--port", "11210"]
# Options of the cluster come after the name of the image. Its password is in the output, or from DCP_PASSWORD.
CMD ["--json"]
