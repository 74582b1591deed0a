"""Plays systemd for a gateway of `Type=notify`: service_manager.py SLUICE FOLDER

Ports come in the environment: PROXY_PORT, ADMIN_PORT, CONTROL_PORT, METRICS_PORT.
"""

import os
import signal
import socket
import subprocess
import sys
import time

SLUICE, FOLDER = sys.argv[1:3]
PATIENCE = 60

CONFIG = """\
apisix:
  node_listen: [{{ip: 127.0.0.1, port: {PROXY_PORT}}}]
  control: {{ip: 127.0.0.1, port: {CONTROL_PORT}}}
  ssl: {{enable: false}}
deployment:
  role: traditional
  role_traditional: {{config_provider: embedded}}
  admin:
    admin_listen: {{ip: 127.0.0.1, port: {ADMIN_PORT}}}
plugin_attr:
  prometheus: {{export_addr: {{ip: 127.0.0.1, port: {METRICS_PORT}}}}}
"""


def write(text):
    with open(os.path.join(FOLDER, "config.yaml"), "w") as file:
        file.write(text)


def main():
    config = CONFIG.format(**os.environ)
    write(config)
    path = os.path.join(FOLDER, "notify")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(path)
    manager.settimeout(PATIENCE)

    def expect(*lines):
        state = manager.recv(4096).decode()
        found = [line.split("=") for line in state.split("\n")]
        assert [name for name, _ in found] == [line.split("=")[0] for line in lines], state
        for (name, value), line in zip(found, lines):
            wanted = line.partition("=")[2]
            assert wanted in ("", value), state
        return {name: int(value) for name, value in found}

    log = open(os.path.join(FOLDER, "sluice.log"), "ab")
    command = [SLUICE, "run", FOLDER, "--data", os.path.join(FOLDER, "data")]
    environment = {**os.environ, "NOTIFY_SOCKET": path}
    gateway = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    main_process = gateway.pid
    try:
        expect("READY=1")
        for text in (config, "apisix: ["):
            write(text)
            before = time.clock_gettime(time.CLOCK_MONOTONIC)
            os.kill(main_process, signal.SIGHUP)
            sent = expect("RELOADING=1", "MONOTONIC_USEC")
            assert before * 1e6 - 1 <= sent["MONOTONIC_USEC"] <= time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6, sent
            expect("READY=1")
        write(config)
        os.kill(main_process, signal.SIGUSR2)
        main_process = expect("MAINPID")["MAINPID"]
        assert main_process != gateway.pid
        expect("READY=1")
        # The old process ends without a word: the service does not stop.
        assert gateway.wait(PATIENCE) == 0
        os.kill(main_process, signal.SIGTERM)
        expect("STOPPING=1")
        print("ready, reloaded twice, upgraded, stopped")
    finally:
        for process in {gateway.pid, main_process}:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass


main()
