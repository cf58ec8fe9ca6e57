"""What Envoy is started with: one listener, one cluster, endpoints from a watched file.

Does: say it as JSON. Does not: write it.
Invariant: nothing in it can cut or repeat a request: no timeout on a route, no retries, no health checks of its own,
no panic mode, no limits on connections; and no answer of a replica, however it reads, takes it out of traffic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from providers.balancer.envoy.settings import Address, Settings, Strategy

_TYPE: Final = "type.googleapis.com/envoy."
#: A safety net for the seconds between the death of a replica and its eviction. With the fewest requests inside, a dead
#: replica draws nearly all new ones: 11 of 13 in 1.7 s were measured. Only what Envoy itself runs into counts (refused,
#: reset, no connection in time): how a replica answers is for the probe to judge, so that one that is busy, or says no,
#: is never taken out here. One failure is enough, since the requests that a dying replica loses are it, and nobody else
#: is lost. It is short, because a healthy replica may reset one connection; and it never takes more than half, so not
#: the only one: there a false alarm would refuse everything, and a true one has nobody to send to anyway.
_OUTLIERS: Final[dict[str, Any]] = {
    "split_external_local_origin_errors": True,
    "consecutive_local_origin_failure": 1,
    "enforcing_consecutive_local_origin_failure": 100,
    "enforcing_local_origin_success_rate": 0,
    "enforcing_consecutive_5xx": 0,
    "enforcing_consecutive_gateway_failure": 0,
    "enforcing_success_rate": 0,
    "enforcing_failure_percentage": 0,
    "max_ejection_percent": 50,
    "always_eject_one_host": False,
    "interval": "1s",
    "base_ejection_time": "5s",
    "max_ejection_time": "30s",
}
_NO_LIMIT: Final = 1_000_000  # Envoy's default of 1024 answers 503 to the rest; the queue is the model server's affair
_POLICIES: Final[dict[Strategy, dict[str, Any]]] = {
    "round_robin": {"lb_policy": "ROUND_ROBIN"},
    "weighted": {"lb_policy": "ROUND_ROBIN"},
    # All members are compared: by default only two are drawn, and an idle replica may be left out.
    "least_connections": {
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.least_request",
                        "typed_config": {
                            "@type": f"{_TYPE}extensions.load_balancing_policies.least_request.v3.LeastRequest",
                            "selection_method": "FULL_SCAN",
                        },
                    }
                }
            ]
        }
    },
    "source_hash": {"lb_policy": "MAGLEV"},  # of the hashes the one that moves fewest clients when members change
}


def fingerprint(settings: Settings) -> str:
    """What an Envoy that already runs must have been started with, to be ours without a restart."""
    skip = {"directory", "embedded"}
    return "; ".join(f"{k} {v}" for k, v in sorted(msgspec.structs.asdict(settings).items()) if k not in skip)


def bootstrap(settings: Settings, endpoints: Path) -> dict[str, Any]:
    """The whole configuration, in Envoy's words."""
    return {
        "node": {"id": "autoscaler", "cluster": "autoscaler", "metadata": {"settings": fingerprint(settings)}},
        "admin": {"address": _address(Address.read(settings.admin))},
        "static_resources": {"listeners": [_listener(settings)], "clusters": [_cluster(settings, endpoints)]},
    }


def _address(address: Address) -> dict[str, Any]:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def _listener(settings: Settings) -> dict[str, Any]:
    route: dict[str, Any] = {"cluster": settings.cluster, "timeout": "0s"}  # the default of 15 s cuts long answers
    if settings.strategy == "source_hash":
        by_header = {"header": {"header_name": settings.hash_header}}
        by_address = {"connection_properties": {"source_ip": True}}
        route["hash_policy"] = [by_header if settings.hash_header else by_address]
    manager = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "use_remote_address": True,
        "stream_idle_timeout": f"{settings.stream_idle:g}s",
        "route_config": {
            "name": "all",
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
            ],
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    return {
        "name": "clients",
        "address": _address(Address.read(settings.listen)),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _cluster(settings: Settings, endpoints: Path) -> dict[str, Any]:
    options = {
        "@type": f"{_TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http_protocol_options": {}},
        "common_http_protocol_options": {"idle_timeout": f"{settings.keepalive:g}s"},
    }
    limits = {"max_connections": _NO_LIMIT, "max_pending_requests": _NO_LIMIT, "max_requests": _NO_LIMIT}
    return {
        "name": settings.cluster,
        "type": "EDS",
        "connect_timeout": f"{settings.connect:g}s",
        **_POLICIES[settings.strategy],
        "eds_cluster_config": {
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": str(endpoints),
                    "watched_directory": {"path": str(endpoints.parent)},
                },
            }
        },
        # At the default of 50 % Envoy sends requests to draining members when the healthy ones are few.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "outlier_detection": _OUTLIERS,
        "ignore_health_on_host_removal": True,
        "track_cluster_stats": {"per_endpoint_stats": True},
        "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", **limits}]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
    }
