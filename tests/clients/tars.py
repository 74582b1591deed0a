"""Nodes out of a database that Tars keeps, with a real MariaDB: tars.py FOLDER GATEWAY CONTROL DATABASE OLD NEW

All but the folder are ports; OLD and NEW those of two servers. The gateway runs already, and has asked in vain.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

FOLDER = sys.argv[1]
GATEWAY, CONTROL, DATABASE, OLD, NEW = (int(text) for text in sys.argv[2:7])
PATIENCE = 90
DATA, SOCKET = os.path.join(FOLDER, "mariadb"), os.path.join(FOLDER, "db.sock")
USER = ["--user=root"] if os.getuid() == 0 else []

# The columns of Tars' own tables that the registry reads.
TABLES = """
create database db_tars; use db_tars;
create table t_server_conf (application varchar(128), server_name varchar(128), node_name varchar(50),
  setting_state varchar(20), present_state varchar(20), registry_timestamp datetime);
create table t_adapter_conf (application varchar(128), server_name varchar(128), node_name varchar(50),
  servant varchar(128), endpoint varchar(1024), registry_timestamp datetime);
create user 'tars'@'127.0.0.1' identified by 'a password';
grant select on db_tars.* to 'tars'@'127.0.0.1';
"""
# Registered long ago: only a full reading sees it.
FIRST = f"""
insert into t_server_conf values ('A', 'Web', 'n1', 'active', 'active', '2020-01-01'),
  ('A', 'Web', 'n2', 'active', 'inactive', '2020-01-01'), ('A', 'Other', 'n1', 'active', 'active', '2020-01-01');
insert into t_adapter_conf values
  ('A', 'Web', 'n1', 'A.Web.Obj', 'tcp -h 127.0.0.1 -t 60000 -p {OLD} -e 0', '2020-01-01'),
  ('A', 'Web', 'n2', 'A.Web.Obj', 'tcp -h 127.0.0.1 -t 60000 -p 9 -e 0', '2020-01-01');
"""
MOVES = f"""
update t_server_conf set present_state = 'inactive', registry_timestamp = now() where node_name = 'n1' and server_name = 'Web';
update t_server_conf set present_state = 'active', registry_timestamp = now() where node_name = 'n2' and server_name = 'Web';
update t_adapter_conf set endpoint = 'tcp -p {NEW} -h 127.0.0.1' where node_name = 'n2' and server_name = 'Web';
"""
ENDS = """
update t_server_conf set setting_state = 'inactive', registry_timestamp = now() where server_name = 'Web';
"""
# More than the 1,024 bytes that a server joins by itself.
LONG = """
insert into t_adapter_conf select 'A', 'Other', 'n1', 'A.Other.Obj', concat('tcp -h 10.', seq, '.0.1 -p 10001 -t 60000'), now()
  from seq_1_to_200;
"""


def sql(text, database="db_tars"):
    command = ["mariadb", "--no-defaults", "--socket", SOCKET, "--user", "root", "--database", database]
    subprocess.run(command, input=text.encode(), check=True)


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def others():
    """How many nodes of the other servant have which port."""
    nodes = json.loads(get(CONTROL, "/v1/discovery/tars/dump")[1])["services"].get("A.Other.Obj", [])
    ports = [node["port"] for node in nodes]
    return {port: ports.count(port) for port in ports}


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
        time.sleep(0.2)
    print(f"{what}: ok")


def start():
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={DATA}", "--skip-test-db",
               "--auth-root-authentication-method=normal", *USER]
    with open(os.path.join(FOLDER, "mariadb.log"), "wb") as log:
        subprocess.run(install, check=True, stdout=log, stderr=log)
        server = ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={DATA}", *USER, f"--socket={SOCKET}", f"--port={DATABASE}",
                  "--bind-address=127.0.0.1", f"--pid-file={DATA}/pid", "--skip-log-bin"]
        return subprocess.Popen(server, stdout=log, stderr=log)


assert get(GATEWAY, "/web")[0] == 503, "nodes before there is a database"
server = start()
try:
    end = time.monotonic() + PATIENCE
    while subprocess.run(["mariadb", "--no-defaults", "--socket", SOCKET, "--user", "root", "--execute", "select 1"],
                         capture_output=True).returncode != 0:
        assert server.poll() is None and time.monotonic() < end, "MariaDB does not start, see mariadb.log"
        time.sleep(0.1)
    sql(TABLES, "mysql")
    sql(FIRST)
    until("an active servant", lambda: get(GATEWAY, "/web") == (200, "old"))
    sql(MOVES)
    until("a servant that moved", lambda: get(GATEWAY, "/web") == (200, "new"))
    sql(LONG)
    until("many endpoints", lambda: others() == {10001: 200})
    sql(ENDS)
    until("a servant that ended", lambda: get(GATEWAY, "/web")[0] == 503)
    sql(MOVES + "update t_server_conf set setting_state = 'active' where server_name = 'Web';")
    until("one that came back", lambda: get(GATEWAY, "/web") == (200, "new"))
finally:
    server.send_signal(signal.SIGKILL)
    server.wait()
for _ in range(5):
    assert get(GATEWAY, "/web") == (200, "new"), "nodes were lost with the database"
print("a database that is gone: ok")
