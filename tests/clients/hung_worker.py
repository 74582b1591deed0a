"""One worker of a gateway is stopped from outside and let go again: hung_worker.py SLUICE CONFIG STATUS PROXY

Starts the gateway itself, since a system may let nobody but a parent stop a thread (ptrace).
"""

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import time

SLUICE, CONFIG, STATUS, PROXY = sys.argv[1:5]
PATIENCE = 60
SEIZE, INTERRUPT = 0x4206, 0x4207
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long


def ptrace(request, thread):
    if LIBC.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of thread {thread}")


def asked(address, path):
    """Status and body; None where nobody answers in time."""
    connection = http.client.HTTPConnection(address, timeout=2)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return None
    finally:
        connection.close()


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.05)
    raise SystemExit(f"{what}: not within {PATIENCE} s; last: {asked(STATUS, '/status/ready')}")


def ready(status, words):
    def holds():
        answer = asked(STATUS, "/status/ready")
        return answer is not None and answer[0] == status and words in answer[1]

    return holds


def thread_named(pid, name):
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm") as comm:
            if comm.read().strip() == name:
                return int(thread)
    raise SystemExit(f"no thread {name}")


gateway = subprocess.Popen([SLUICE, "run", CONFIG])
try:
    until("ready at first", ready(200, "ok"))
    worker = thread_named(gateway.pid, "worker-1")
    ptrace(SEIZE, worker)
    ptrace(INTERRUPT, worker)
    until("503 while one worker hangs", ready(503, "worker id: 1 hangs"))
    assert asked(STATUS, "/status") is not None, "the page itself is served"
    # The system shares new connections among all listening sockets: some of many reach the other worker.
    until("the other worker serves", lambda: asked(PROXY, "/") is not None)
    # It cannot be let go without being waited for.
    os.waitpid(worker, 0x40000000)
    ptrace(17, worker)
    until("ready again", ready(200, "ok"))
finally:
    gateway.send_signal(signal.SIGTERM)
    code = gateway.wait(PATIENCE)
assert code == 0, code
print("ok")
