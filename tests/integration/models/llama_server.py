"""llama.cpp's own HTTP server, run until a signal ends it.

Runs in the environment of `llama_cpp.lock`. The package carries the server's code as a library, compiled for any x86-64
with AVX2; this is what its `main` does: read the options, serve, wait.
"""

import argparse
import threading

import xllamacpp

#: `--threads-http` of llama-server. With its default, a few and more when needed, a connection can be left without a
#: thread: /health and /metrics then answered nothing for 8 s and more, again and again, while 12 clients were served.
_HTTP_THREADS = 64


def main() -> None:
    """Serve one model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = 4096
    params.n_threads_http = _HTTP_THREADS
    params.cpuparams.n_threads = 1
    params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    print("serving", server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
