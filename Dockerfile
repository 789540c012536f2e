# One image for every part of Refeed: driver, executors, API, streams and terminal.
#
#   docker build --tag refeed .
#   docker run --rm refeed --help
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/refeed
# The packages alone first: code changes do not fetch them again.
COPY requirements.lock ./
RUN /opt/refeed/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement requirements.lock
COPY . .
RUN /opt/refeed/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/refeed/bin/python -m connectors.spark.classes

# The tests' stand-in for BigQuery, for docker-compose.yml alone.
FROM build AS bigquery-standin
RUN mkdir /var/lib/standin
VOLUME /var/lib/standin
ENV PYTHONPATH=/src
CMD ["/opt/refeed/bin/python", "tests/standin/bigquery_server.py", "--data-dir", "/var/lib/standin", \
     "--host", "0.0.0.0", "--rest-port", "9050", "--grpc-port", "9060"]

FROM python:3.11-slim-bookworm AS runtime
# tini hands signals on and buries what the JVM leaves; Spark's scripts ask ps.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends procps tini \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/refeed /opt/refeed
ENV PATH=/opt/refeed/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1

# For REFEED_LAUNCHER=dataproc: what batches run in, driver and executors. "Use custom containers with Dataproc
# Serverless" asks for the user spark, 1099, and for no Spark: its own is mounted.
FROM runtime AS dataproc
RUN groupadd --gid 1099 spark \
 && useradd --uid 1099 --gid 1099 --create-home --home-dir /home/spark spark \
 && rm -rf /opt/refeed/lib/python3.11/site-packages/pyspark
ENV PYSPARK_PYTHON=/opt/refeed/bin/python
USER spark

FROM runtime AS refeed
RUN useradd --uid 10001 --create-home --home-dir /var/lib/refeed refeed
ENV REFEED_HOME=/var/lib/refeed
USER 10001
WORKDIR /var/lib/refeed
VOLUME /var/lib/refeed
ENTRYPOINT ["tini", "--", "refeed"]
CMD ["--help"]
