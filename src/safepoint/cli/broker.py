"""Owns the options of the command line that say where NATS is, and how to get in."""

import argparse
import os

from ..worker.nats import NatsBroker

__all__ = ["broker_of", "broker_options"]

URL = "nats://127.0.0.1:4222"


def broker_options(command: argparse.ArgumentParser, *, by_default: str | None) -> None:
    """Add them. `by_default`: where, if nobody says."""
    default = os.environ.get("NATS_URL", by_default) if by_default else None
    group = command.add_argument_group("NATS")
    told = f"default {URL}, or NATS_URL" if by_default else "run sessions on workers there; several with commas"
    group.add_argument("--nats", metavar="URL", default=default, help=told)
    group.add_argument("--namespace", default="safepoint", metavar="WORD", help="default safepoint")
    told = "seconds until a silent worker counts as dead; the same for all workers of an agent; default 10"
    group.add_argument("--lease", type=float, default=10.0, metavar="S", help=told)
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="copies in a cluster; default 1")
    group.add_argument("--creds", metavar="FILE", help="a credentials file")
    group.add_argument("--nkey", metavar="FILE", help="an NKey seed file")
    group.add_argument("--tls-ca", metavar="FILE", help="the authority of the server's certificate")
    group.add_argument("--tls-cert", metavar="FILE", help="our certificate")
    group.add_argument("--tls-key", metavar="FILE", help="and its key")
    group.add_argument("--no-create", action="store_true", help="the streams are there: make none")


def broker_of(options: argparse.Namespace) -> NatsBroker:
    """What they say. User, password and token come with the address or from NATS_USER, NATS_PASSWORD, NATS_TOKEN."""
    return NatsBroker(
        options.nats.split(","),
        namespace=options.namespace,
        lease=options.lease,
        replicas=options.replicas,
        credentials=options.creds,
        nkey=options.nkey,
        user=os.environ.get("NATS_USER"),
        password=os.environ.get("NATS_PASSWORD"),
        token=os.environ.get("NATS_TOKEN"),
        ca=options.tls_ca,
        cert=options.tls_cert,
        key=options.tls_key,
        create=not options.no_create,
    )
