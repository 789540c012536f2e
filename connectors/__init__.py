"""Connects to each outside system in its own folder, and turns SDK errors into Refeed's errors."""

import os

# Spark's JVM is forked from a process whose Pub/Sub and BigQuery clients are at work, and gRPC's own preparation
# for a fork ends 2 of 100 such children before they become the program (JAVA_GATEWAY_EXITED). gRPC reads this when
# it begins; it is for who "always calls exec immediately following fork": https://github.com/grpc/grpc/pull/14870
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# Where an office's proxy is set, gRPC and HTTP clients ask it for this machine as well. They read these names, the
# small one first where both are set (gRPC's http_proxy_mapper.cc, Python's urllib.request.getproxies_environment).
_direct = [name for name in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",") if name]
# A lone * stands for every host, and with others beside it for none.
if _direct != ["*"]:
    _direct += [name for name in ("127.0.0.1", "localhost", "::1") if name not in _direct]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(_direct)
