"""The command line options for the address of NATS and how to authenticate."""

import argparse
import os

from ..worker.nats import NatsBroker

__all__ = ["broker_of", "broker_options"]

URL = "nats://127.0.0.1:4222"


def broker_options(command: argparse.ArgumentParser, *, by_default: str | None) -> None:
    """Add the options to a command.

    Args:
        command: The command.
        by_default: The address if none is given. None if the command does not use NATS by default.
    """
    default = os.environ.get("NATS_URL", by_default) if by_default else None
    group = command.add_argument_group("NATS")
    where = f"default {URL}, or NATS_URL" if by_default else "run sessions on workers there; several with commas"
    group.add_argument("--nats", metavar="URL", default=default, help=where)
    group.add_argument("--namespace", default="safepoint", metavar="WORD", help="default safepoint")
    lease = "seconds until a silent worker counts as dead; the same for all workers of an agent; default 10"
    group.add_argument("--lease", type=float, default=10.0, metavar="S", help=lease)
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="copies in a cluster; default 1")
    group.add_argument("--creds", metavar="FILE", help="a credentials file")
    group.add_argument("--nkey", metavar="FILE", help="an NKey seed file")
    group.add_argument("--tls-ca", metavar="FILE", help="the authority of the server's certificate")
    group.add_argument("--tls-cert", metavar="FILE", help="the certificate of this client")
    group.add_argument("--tls-key", metavar="FILE", help="the key of that certificate")
    group.add_argument("--no-create", action="store_true", help="do not create missing streams")


def broker_of(options: argparse.Namespace) -> NatsBroker:
    """The broker that the options describe.

    User, password and token are part of the address, or come from NATS_USER, NATS_PASSWORD and NATS_TOKEN.
    """
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
