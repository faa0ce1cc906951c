"""Damaged frames of live sessions, sent to the control sockets of running processes by members (with
the secret) and by strangers (with none, with another one, and with no ZeroMQ at all)."""

import os
import socket
import time
from collections.abc import Callable
from random import Random
from urllib.parse import urlsplit

import zmq
from tests.fuzz.live import Live, live
from tests.fuzz.mutate import Mutator
from tests.fuzz.report import Report

from baton.adapters.secret import KeyPair, Secret
from baton.adapters.zmq_control import ZmqControl
from baton.wire.codec import MAX_FRAME_BYTES

REPLAYED = 0.05
EACH = 500  # frames of one connection
CONNECT_S = 20.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)


def fuzz(count: int, seed: int) -> Report:
    """So many frames: four of five by members, the others by strangers."""
    report, rng = Report("control"), Random(seed)
    with live() as found:
        frames = found.frames()
        mutator = Mutator(frames, seed)

        def draw() -> bytes:
            """A damaged frame, or one that was right before, said again by another process."""
            return rng.choice(frames) if rng.random() < REPLAYED else mutator.draw()

        targets = list(found.listening.values())
        before = found.residents()
        settled = False
        done = 0
        while done < count:
            address, share = rng.choice(targets), min(EACH, count - done)
            began = time.monotonic()
            if rng.random() < 0.8:
                _as_member(found, address, draw, share, report)
            else:
                _as_stranger(address, mutator, share, rng, report)
            done += share
            report.slowest_s = max(report.slowest_s, (time.monotonic() - began) / share)
            if any(p.popen.poll() is not None for p in found.service.processes.values()):
                break
            if not settled and done > count // 10:
                found.serve()
                before, settled = found.residents(), True
        found.judge(report, before)
    return report


def _as_member(
    found: Live, address: str, draw: Callable[[], bytes], share: int, report: Report
) -> None:
    control = ZmqControl(bind=None, keys=found.secret, max_frame_bytes=MAX_FRAME_BYTES)
    try:
        link, until, sent = control.dial(address), time.monotonic() + CONNECT_S, 0
        while sent < share and time.monotonic() < until:
            if control.send(link, draw()):
                sent += 1
            else:  # not connected yet, or the other side has enough for now
                time.sleep(0.002)
            control.receive()
        report.outcomes["frames of members"] += sent
        if sent < share:
            report.breaks(f"{address} took {sent} of {share} frames")
    finally:
        control.close()


def _as_stranger(address: str, mutator: Mutator, share: int, rng: Random, report: Report) -> None:
    how = rng.choice(("no key", "another key", "no ZeroMQ"))
    if how == "no ZeroMQ":
        at = urlsplit(address)
        for _ in range(share):
            raw = Mutator([GREETING], rng.getrandbits(64)).draw() + mutator.draw()[:2000]
            try:
                with socket.create_connection((at.hostname, at.port), CONNECT_S) as sock:
                    sock.sendall(raw)
            except ConnectionError:
                pass
            report.outcomes["connections of strangers"] += 1
        return
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    if how == "another key":
        ours, theirs = (KeyPair(*zmq.curve_keypair()) for _ in range(2))
        wrong = Secret(theirs, ours)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, wrong.server.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, wrong.client.private)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, wrong.client.public)
    dealer.connect(address)
    for _ in range(share):
        try:  # queued here; it would leave if the other side let it in
            dealer.send(mutator.draw(), zmq.DONTWAIT)
        except zmq.Again:
            break
        report.outcomes["frames of strangers"] += 1
    time.sleep(0.02)
    if dealer.poll(0):
        report.breaks(f"{address} answers a stranger with {how}", os.urandom(0))
    context.destroy(linger=0)
